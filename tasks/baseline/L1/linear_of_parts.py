"""Several inputs of one width, each multiplied by rows of its own of one weight.

    y = [x_0 W_0^T | x_1 W_1^T | ...]          W = [W_0; W_1; ...]

T tokens, M parts, K inputs, N outputs of all parts: x [T, M, K], W [N, K], y [T, N]. Products accumulate in
at least float32; y has the dtype of x.
Mirrors as many vllm.model_executor.layers.linear.ReplicatedLinear, with return_bias=False.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class LinearOfParts(nn.Module):
    def __init__(self, input_size: int, output_sizes: list[int]) -> None:
        super().__init__()
        self.output_sizes = list(output_sizes)
        self.weight = nn.Parameter(torch.empty(sum(output_sizes), input_size), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, M, K] -> [T, sum(output_sizes)]"""
        return kernels.linear_of_parts(x, self.weight, self.output_sizes)
