"""Interactions of a sample's dense vector and its sparse ones.

    dot      z = [h; e_1; ...; e_F],  p_ij = z_i . z_j,  y = [h | p_01 .. p_0F | p_12 .. p_1F | ..]
    cross    x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l,  y = x_L

B samples, F sparse features, D of a vector, N inputs of the cross net, r its rank; h [D], e [F, D], V [r, N],
W [N, r]. Of the products i < j are kept, row by row. Products accumulate in at least float32; rounded to the
dtype of the inputs after each product, and a cross layer's sum once more.
Mirrors torchrec.models.dlrm.InteractionArch, torchrec.modules.crossnet.LowRankCrossNet.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels

from ..L1.linear import Linear


class DotInteraction(nn.Module):
    def __init__(self, num_sparse_features: int) -> None:
        super().__init__()
        self.num_sparse_features = num_sparse_features

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        """[B, D], [B, F, D] -> [B, D + F (F + 1) / 2]"""
        return kernels.dot_interaction(dense_features, sparse_features)


class LowRankCrossNet(nn.Module):
    def __init__(self, in_features: int, num_layers: int, low_rank: int = 1) -> None:
        super().__init__()
        self.v = nn.ModuleList(Linear(in_features, low_rank) for _ in range(num_layers))
        self.w = nn.ModuleList(Linear(low_rank, in_features, bias=True) for _ in range(num_layers))

    def forward(self, input: Tensor) -> Tensor:
        """[B, N] -> [B, N]"""
        x_BN = input
        for v, w in zip(self.v, self.w):
            x_BN = torch.addcmul(x_BN, input, w(v(x_BN)))
        return x_BN
