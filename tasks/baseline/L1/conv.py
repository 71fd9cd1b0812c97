"""Convolution over the rows and columns of a feature map, channels last.

    y[b, r, c, o] = bias[o] + sum_uvi x[b, s r + u - p, s c + v - p, g I + i] weight[o, u, v, i]

B images, Y, X rows and columns, C channels, O filters of U x U places; s stride, p padding with zeros, g
the group of o. groups = C = O: depthwise. Maps and filters lie channels last: the permuted views are what
PyTorch calls channels_last. Accumulates in at least float32; y has the dtype of x.
Mirrors torch.nn.Conv2d.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class Conv2d(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.groups = stride, padding, groups
        filters_OUVI = torch.empty(out_channels, kernel_size, kernel_size, in_channels // groups)
        self.weight = nn.Parameter(filters_OUVI, requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_channels), requires_grad=False) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y', X', O], Y' = (Y + 2 padding - kernel_size) // stride + 1"""
        return kernels.conv2d(input, self.weight, self.bias, self.stride, self.padding, self.groups)
