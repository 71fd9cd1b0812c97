"""Pooling of a feature map, channels last.

    max     y[b, r, c] = max_uv x[b, s r + u - p, s c + v - p]          u, v = 0 .. kernel_size - 1
    average y[b, r, c] = mean_uv x[b, s r + u, s c + v]                 those of u, v inside the map
    mean    y[b] = mean_n x[b, n]                                       n over all rows and columns
    most    y[b] = max_n x[b, n]                                        n over tokens, or points of a cloud

B images, Y, X rows and columns, C channels; s stride, p padding: places outside the map take no part.
A maximum is exact, a mean is summed in at least float32; y has the dtype of x.
Mirrors torch.nn.MaxPool2d, torch.nn.AvgPool2d, torch.nn.AdaptiveAvgPool2d, torch.nn.AdaptiveMaxPool1d.
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


class AvgPool2d(nn.Module):
    def __init__(self, kernel_size: int, stride: int, ceil_mode: bool = False) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.ceil_mode = kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y', X', C], Y' = (Y - kernel_size) / stride + 1, rounded down, or up in
        ceil_mode"""
        return kernels.avg_pool2d(input, self.kernel_size, self.stride, self.ceil_mode)


class GlobalMeanPool(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """x [B, Y, X, C], or tokens [B, N, C] -> [B, C]; AdaptiveAvgPool2d with one place of output"""
        return kernels.mean_pool(input)


class GlobalMaxPool(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """x [B, N, C] -> [B, C]; AdaptiveMaxPool1d with one place of output, channels last"""
        return kernels.max_tokens(input)
