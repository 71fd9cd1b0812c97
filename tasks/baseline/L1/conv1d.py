"""A convolution along time, and a transposed one, which makes more frames.

    y[b, n, t] = sum_ck x[b, c, t s + k - p] W[n, c, k] + bias[n]        x is zero outside its frames
    y[b, n, t] = sum_ck x[b, c, f] W[c, n, k] + bias[n]             transposed: over f, k with f s + k - p = t

B clips, C channels in, N channels out, K taps, F frames, stride s, padding p at both ends; W [N, C, K],
transposed [C, N, K]. Products accumulate in at least float32; y has the dtype of x.
Mirrors torch.nn.Conv1d, torch.nn.ConvTranspose1d.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class Conv1d(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_channels), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, F] -> [B, N, (F + 2p - K) // s + 1]"""
        return kernels.conv1d(input, self.weight, self.bias, self.stride, self.padding)


class ConvTranspose1d(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels, kernel_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_channels), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, F] -> [B, N, (F - 1) s + K - 2p]"""
        return kernels.conv_transpose1d(input, self.weight, self.bias, self.stride, self.padding)
