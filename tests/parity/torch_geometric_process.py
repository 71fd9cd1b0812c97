"""A light graph convolution net of torch-geometric (apart.py). FILE holds {"num_layers", "embedding" [n, D],
"edge_index" [2, E] of both directions, "csr" (starts, columns, values) or None, "pairs" [2, P]}, and then
{"x", "scores"}: on the normalised matrix as it is given, or on edges that the library normalises."""

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
    is_given = asked["csr"] is not None
    model = LightGCN(nodes, dim, asked["num_layers"], normalize=not is_given).eval()
    model.embedding.weight.copy_(asked["embedding"])
    graph = asked["edge_index"]
    if is_given:
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        graph = torch.sparse_csr_tensor(*asked["csr"], (nodes, nodes), check_invariants=True)
    torch.save({"x": model.get_embedding(graph), "scores": model(graph, asked["pairs"])}, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
