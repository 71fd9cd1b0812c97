"""Recommendation on a graph of users and items: a score for each pair.

    X_0 = embedding;  X_{l+1} = Â X_l;  X = (X_0 + .. + X_L) / (L + 1);  score(u, i) = X[u] . X[U + i]

U users, I items, n = U + I nodes, D features, L layers, P pairs. The graph is the model's own and lies beside
its parameters: `config` has its edges, `edge_index` [users, items], or says how random ones are drawn,
`graph` (num_edges, num_duplicates, num_isolated, seed). Every forward propagates all of it. Parameters, Â and
activations have the dtype of the module. `config` holds num_users, num_items, their sum num_nodes,
embedding_dim and num_layers.
Mirrors torch_geometric.nn.models.LightGCN on a normalised adjacency.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.bipartite import Pairs, normalised, random_edges
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.pair_dot import PairDot
from ..L2.graph_propagation import LightConvolution


class LightGCN(nn.Module):
    place: Place
    crow_indices: Tensor
    col_indices: Tensor
    values: Tensor

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        self.num_users, self.num_items = reader.integer("num_users"), reader.integer("num_items")
        nodes = self.num_users + self.num_items
        if reader.integer("num_nodes") != nodes:
            raise reader.error("num_nodes", f"must be num_users + num_items, {nodes}")
        layers = reader.integer("num_layers", minimum=0)
        self.alpha = 1 / (layers + 1)
        self.embedding = nn.Parameter(
            torch.empty(nodes, reader.integer("embedding_dim")), requires_grad=False
        )
        graph = _graph(reader, self.num_users, self.num_items)
        for name, part in zip(("crow_indices", "col_indices", "values"), graph, strict=True):
            dtype = torch.get_default_dtype() if part.is_floating_point() else part.dtype
            self.register_buffer(name, part.to(torch.get_default_device(), dtype), persistent=False)
        self.convs = nn.ModuleList(LightConvolution(self.alpha) for _ in range(layers))
        self.score_pairs = PairDot()
        self.weight_map = weight_map(self.num_users, self.num_items)

    def forward(self, edge_label_index: Tensor) -> Tensor:
        """Nodes of pairs [2, P] -> scores [P]"""
        return self.score_pairs(edge_label_index, self.get_embedding())

    def get_embedding(self) -> Tensor:
        """X [n, D]"""
        x_ND, out_ND = self.embedding, self.alpha * self.embedding
        for conv in self.convs:
            x_ND, out_ND = conv(x_ND, out_ND, self.crow_indices, self.col_indices, self.values)
        return out_ND

    def examples(self, run: str, batch: Batch) -> Examples:
        """A pair for each token of the batch."""
        yield run, (torch.empty(2, batch.num_tokens, dtype=torch.int32),)

    def score(self, nodes: Tensor) -> Tensor:
        """Nodes of C requests' pairs [2, C, P] -> scores [C, P], by one propagation"""
        return self(nodes.flatten(1)).view(nodes.shape[1:])

    def stages(self) -> dict[str, Stage]:
        return {"score": Stage(Pairs(self.num_users, self.num_items, self.place))}

    def program(self, users: Tensor, items: Tensor) -> Program:
        """users [P] below U, items [P] below I -> scores [P]"""
        return {"scores": (yield Call("score", users, items))}


def _graph(reader: ConfigReader, num_users: int, num_items: int) -> tuple[Tensor, Tensor, Tensor]:
    """Â of the configuration's edges."""
    key = "edge_index" if reader.has("edge_index") else "graph"
    try:
        if key == "edge_index":
            return normalised(reader.config[key], num_users, num_items)
        drawn = reader.section(key)
        names = {"num_edges": 1, "num_duplicates": 0, "num_isolated": 0, "seed": 0}
        numbers = [drawn.integer(name, minimum=least) for name, least in names.items()]
        return normalised(random_edges(num_users, num_items, *numbers), num_users, num_items)
    except ValueError as error:
        raise reader.error(key, str(error)) from error


def weight_map(num_users: int, num_items: int) -> WeightMap:
    """A checkpoint has two tables, or as the reference one of all nodes. Its `alpha` is 1 / (L + 1), too."""
    return WeightMap(
        packed={"embedding": {"user_embedding.weight": num_users, "item_embedding.weight": num_items}},
        spellings={"embedding.weight": "embedding"},
        ignored=("alpha",),
    )
