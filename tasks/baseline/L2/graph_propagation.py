"""One propagation of a light graph convolution, added to the weighted sum of all layers as it is made.

    x' = Â x,   out' = out + alpha x'

n nodes, E entries of Â in compressed rows, D features. No weight, no activation, no self loops: Â is
normalised already. Summed in at least float32; rounded to the dtype of x, in out' once where both are one
kernel.
Mirrors torch_geometric.nn.conv.LGConv with normalize=False, and the sum in LightGCN.get_embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.sparse_mm import SparseMM


class LightConvolution(nn.Module):
    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.propagate = SparseMM()
        self.fuses = Fusion(self, "propagate")

    def forward(
        self, x: Tensor, out: Tensor, crow_indices: Tensor, col_indices: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[n, D], [n, D], integers [n + 1] and [E], [E] -> x' [n, D], out' [n, D]"""
        if self.fuses and not x.is_meta:
            return kernels.sparse_mm_add(crow_indices, col_indices, values, x, out, self.alpha)
        following = self.propagate(crow_indices, col_indices, values, x)
        return following, torch.add(out, following, alpha=self.alpha)
