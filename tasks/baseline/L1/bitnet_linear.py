"""Linear layer of ternary weights over activations of eight bits for each token.

    s = 127 / max(max_k |x[k]|, 1e-5);  c = clip(round(x s), -128, 127)         for each token
    y[n] = (sum_k c[k] T[n, k]) / s * omega[p(n)]                               T in {-1, 0, 1}

T tokens, K inputs, N outputs; several matrices over one input (query, key, value) are one below the other,
output_sizes [P] outputs each, and each has its own scale. weight is uint8 [N / 4, K]: in the packed rows of
a matrix of M outputs bits 2j and 2j + 1 of row r hold T + 1 of output r + j M / 4. weight_scale [P] is omega,
the mean absolute value of the weights that T was made of, in at least float32. s and c are defined in
float32 and rounded to even at halves; the sum is exact; y has the dtype of x.
Mirrors transformers.integrations.bitnet.AutoBitLinear, which keeps T unpacked, and multiplies by its
weight_scale as this does; BitLinear there divides by one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.kernels.ternary import PER_BYTE
from fastkernels.nn.precision import at_least_float32


class BitLinear(nn.Module):
    def __init__(self, in_features: int, out_features: int, output_sizes: list[int] | None = None) -> None:
        super().__init__()
        self.output_sizes = [out_features] if output_sizes is None else list(output_sizes)
        if sum(self.output_sizes) != out_features or any(size % PER_BYTE for size in self.output_sizes):
            raise ValueError(
                f"output_sizes {self.output_sizes}: expected multiples of {PER_BYTE} that add up to "
                f"out_features, {out_features}"
            )
        packed = torch.empty(out_features // PER_BYTE, in_features, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        with at_least_float32():
            self.weight_scale = nn.Parameter(torch.empty(len(self.output_sizes)), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        """[..., K] -> [..., N]"""
        return kernels.bitnet_linear(input, self.weight, self.weight_scale, self.output_sizes)
