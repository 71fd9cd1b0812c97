"""Scores of pairs of nodes: products of their rows.

    y[p] = sum_d x[i[p], d] x[j[p], d]

P pairs (i, j), the rows of edge_label_index; N nodes, D features. Summed in at least float32; y has the dtype
of x.
Mirrors what torch_geometric.nn.models.LightGCN does with its nodes' embeddings.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class PairDot(nn.Module):
    def forward(self, edge_label_index: Tensor, x: Tensor) -> Tensor:
        """int32 or int64 [2, P], [N, D] -> [P]"""
        return kernels.pair_dot(x, edge_label_index)
