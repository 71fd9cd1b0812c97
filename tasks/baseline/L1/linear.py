"""Affine map over the last dimension.

    y = x W^T + b

x [..., K], W [N, K], b [N], y [..., N]. Products accumulate in at least float32; y has the dtype of x.
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
