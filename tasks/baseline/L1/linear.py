"""Affine map over the last dimension.

    y = x W^T + b
    y = [x_0 W_0^T | x_1 W_1^T | ...]                      of parts: of several inputs, W = [W_0; W_1; ...]

x [..., K], W [N, K], b [N], y [..., N]; of M parts x [T, M, K], y [T, N]. Products accumulate in at least
float32; y has the dtype of x.
Mirrors vllm.model_executor.layers.linear.ReplicatedLinear with return_bias=False.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class Linear(nn.Module):
    bias: nn.Parameter | None

    def __init__(self, input_size: int, output_size: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_size, input_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(output_size), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.weight, self.bias)


class LinearOfParts(nn.Module):
    def __init__(self, input_size: int, output_sizes: list[int]) -> None:
        super().__init__()
        self.output_sizes = list(output_sizes)
        self.weight = nn.Parameter(torch.empty(sum(output_sizes), input_size), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, M, K] -> [T, sum(output_sizes)]"""
        return kernels.linear_of_parts(x, self.weight, self.output_sizes)
