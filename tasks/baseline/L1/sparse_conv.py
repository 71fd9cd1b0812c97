"""Submanifold convolution: of the voxels of a cloud, with those around each of them that are there.

    default      y[n] = sum_k W_k x[neighbors[n, k]] + b        over the taps whose neighbour is not -1
    neighbors    neighbors[n, k] = m where grid[m] = grid[n] + k - K // 2 in the same cloud, else -1

N voxels, T = K^3 taps, K on each axis and odd, the one along x slowest; W [O, T C], the channels of a tap
side by side. What comes out are the voxels that go in. Products accumulate in at least float32; y has the
dtype of the input.
Mirrors spconv.pytorch.SubMConv3d, spconv.pytorch.ops.get_indice_pairs with subm=True.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class SubMConv3d(nn.Module):
    bias: nn.Parameter | None

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, bias: bool = True) -> None:
        super().__init__()
        weight_OI = torch.empty(out_channels, kernel_size**3 * in_channels)
        self.weight = nn.Parameter(weight_OI, requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_channels), requires_grad=False) if bias else None

    def forward(self, input: Tensor, neighbors: Tensor) -> Tensor:
        """[N, C], int32 [N, T] -> [N, O]"""
        return kernels.sparse_conv(input, neighbors, self.weight, self.bias)


class SubMNeighbors(nn.Module):
    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size

    def forward(self, grid_coord: Tensor, batch: Tensor) -> Tensor:
        """int [N, 3] of different voxels, from 0 to below 2^16, int [N] -> int32 [N, T]"""
        return kernels.sparse_neighbors(grid_coord, batch, self.kernel_size)
