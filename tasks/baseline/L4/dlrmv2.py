"""Click-through model: dense features and bags of ids to a logit for each sample.

    h = bottom(x);  e_f = sum of the rows of bag f, or their mean;  logit = over(interaction(h, e))
    bottom, over: layers of relu(x W^T + b), the last of `over` without relu
    interaction: dot, products of all pairs behind h; or dcn, a low-rank cross net of [h; e_1; ..; e_F]

B samples, X dense features, F tables, D of a row, N ids. Parameters and activations have the dtype of the
module. `config` has the arguments of the reference: dense_in_features, dense_arch_layer_sizes,
over_arch_layer_sizes, num_embeddings_per_feature, embedding_dim, pooling (sum, mean), interaction (dot, dcn)
and, for dcn, dcn_num_layers and dcn_low_rank_dim.
Mirrors torchrec.models.dlrm.DLRM, torchrec.models.dlrm.DLRM_DCN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.bags import Bags
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.embedding_bag import EmbeddingBag
from ..L2.mlp import LayeredMLP
from ..L2.recsys_interaction import DotInteraction, LowRankCrossNet

MOST_ROWS = 1 << 31  # of all tables: rows of a launch are int32
MOST_CALLS = 32  # of a launch: as many requests of 16,384 rows need tens of GB


class DLRM(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        dim = reader.integer("embedding_dim")
        self.num_dense = reader.integer("dense_in_features")
        self.num_embeddings = _sizes(reader, "num_embeddings_per_feature")
        tables = len(self.num_embeddings)
        if sum(self.num_embeddings) >= MOST_ROWS:
            raise reader.error("num_embeddings_per_feature", f"add up to more than {MOST_ROWS - 1} rows")
        bottom, over = (_sizes(reader, f"{part}_arch_layer_sizes") for part in ("dense", "over"))
        if bottom[-1] != dim:
            raise reader.error(
                "dense_arch_layer_sizes", f"must end with embedding_dim {dim}, not {bottom[-1]}"
            )
        if over[-1] != 1:
            raise reader.error("over_arch_layer_sizes", f"must end with 1, a logit, not {over[-1]}")
        # Examples of requests are of these lengths; the forward takes any.
        self.bag_sizes = _sizes(reader, "multi_hot_sizes", minimum=0)
        if len(self.bag_sizes) != tables:
            raise reader.error("multi_hot_sizes", f"must have one for each of {tables} tables")

        self.bottom = LayeredMLP(self.num_dense, bottom)
        pooling = reader.choice("pooling", {"sum": "sum", "mean": "mean"}, default="sum")
        self.embedding_bags = EmbeddingBag(sum(self.num_embeddings), dim, pooling, tables)
        self.is_dot = reader.choice("interaction", {"dot": True, "dcn": False})
        if self.is_dot:
            self.interaction = DotInteraction(tables)
            width = dim + tables * (tables + 1) // 2
        else:
            width = (tables + 1) * dim
            rank = reader.integer("dcn_low_rank_dim")
            self.interaction = LowRankCrossNet(width, reader.integer("dcn_num_layers"), rank)
        self.over = LayeredMLP(width, over, activation_on_last=False)
        self.weight_map = weight_map(self.num_embeddings, len(over) - 1)

    def forward(self, dense_features: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
        """dense_features [B, X]; values [N], rows of all tables one behind the other; offsets [F B + 1] of
        the bags, feature by feature -> logits [B, 1]"""
        h_BD = self.bottom(dense_features)
        e_BFD = self.embedding_bags(values, offsets)
        if self.is_dot:
            return self.over(self.interaction(h_BD, e_BFD))
        return self.over(self.interaction(torch.cat((h_BD[:, None], e_BFD), 1).flatten(1)))

    def examples(self, run: str, batch: Batch) -> Examples:
        """A sample for each token of the batch, with bags as long as multi_hot_sizes."""
        samples = batch.num_tokens
        ids_N = torch.empty(samples * sum(self.bag_sizes), dtype=torch.int32)
        offsets = torch.empty(len(self.num_embeddings) * samples + 1, dtype=torch.int32)
        yield run, (torch.empty(samples, self.num_dense), ids_N, offsets)

    def score(self, dense_features: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
        """The same for C requests of R rows: dense_features [C, R, X] -> logits [C, R]"""
        logits = self(dense_features.flatten(0, 1), values, offsets)
        return logits.view(dense_features.shape[:2])

    def stages(self) -> dict[str, Stage]:
        return {"score": Stage(Bags(self.num_embeddings, self.num_dense, self.place), MOST_CALLS)}

    def program(self, dense: Tensor, values: Tensor, lengths: Tensor) -> Program:
        """dense [R, X], lengths [F, R] of the bags of R rows, values [N] of their ids, each below the rows of
        its table -> logits [R]"""
        return {"logits": (yield Call("score", dense, values, lengths))}


def _sizes(reader: ConfigReader, key: str, minimum: int = 1) -> list[int]:
    found = reader.config.get(key)
    if not isinstance(found, list) or not found:
        raise reader.error(key, f"must be a list of sizes, not {found!r:.60}")
    for size in found:
        if isinstance(size, bool) or not isinstance(size, int) or size < minimum:
            raise reader.error(key, f"must be integers of at least {minimum}, not {size!r}")
    return found


def weight_map(num_embeddings: list[int], last: int) -> WeightMap:
    """The tables of a checkpoint are the rows of one; the last layer of `over` stands apart there."""
    tables = "sparse_arch.embedding_bag_collection.embedding_bags"
    return WeightMap(
        names={
            "over_arch.model.1.*": f"over.layers.{last}.linear.*",
            "over_arch.model.0._mlp.*._linear.*": "over.layers.*.linear.*",
            "dense_arch.model._mlp.*._linear.*": "bottom.layers.*.linear.*",
            "inter_arch.crossnet.V_kernels.*": "interaction.v.*.weight",
            "inter_arch.crossnet.W_kernels.*": "interaction.w.*.weight",
            "inter_arch.crossnet.bias.*": "interaction.w.*.bias",
        },
        packed={
            "embedding_bags.weight": {f"{tables}.t{i}.weight": rows for i, rows in enumerate(num_embeddings)}
        },
    )
