"""Pooling of a feature map, channels last: the largest value of every window.

    y[b, r, c] = max_uv x[b, s r + u - p, s c + v - p]          u, v = 0 .. kernel_size - 1

B images, Y, X rows and columns, C channels; s stride, p padding: places outside the map take no part.
Exact; y has the dtype of x.
Mirrors torch.nn.MaxPool2d.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class MaxPool2d(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, input: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y', X', C], Y' = (Y + 2 padding - kernel_size) // stride + 1"""
        return kernels.max_pool2d(input, self.kernel_size, self.stride, self.padding)
