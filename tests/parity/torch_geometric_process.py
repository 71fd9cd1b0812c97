"""A light graph convolution net of torch-geometric (apart.py). FILE holds {"num_layers", "embedding" [n, D],
"edge_index" [2, E] of both directions, "csr" (starts, columns, values), "pairs" [2, P]}, and then {"x",
"scores"} twice: on the normalised matrix as it is given, and on edges that the library normalises."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch_geometric.nn.models import LightGCN


@torch.inference_mode()
def main(path: Path) -> None:
    asked = torch.load(path)
    nodes, dim = asked["embedding"].shape
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
    matrix = torch.sparse_csr_tensor(*asked["csr"], (nodes, nodes), check_invariants=True)
    found = []
    for graph, normalize in ((matrix, False), (asked["edge_index"], True)):
        model = LightGCN(nodes, dim, asked["num_layers"], normalize=normalize).eval()
        model.embedding.weight.copy_(asked["embedding"])
        found.append({"x": model.get_embedding(graph), "scores": model(graph, asked["pairs"])})
    torch.save(found, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
