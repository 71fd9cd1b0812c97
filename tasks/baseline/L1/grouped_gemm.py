"""A linear layer in which every row has its own weight: that of its expert.

    y[s] = w[s] W[e(s)] A[s // R]

S slots (t k + j for the j-th expert of token t), E experts, R = S / rows of A: slots that share a row of A,
k where A has a row for each token. W is [E, N, K]. Slot s belongs to the expert e with s in
sorted_token_ids[starts[e] : starts[e+1]], the order and the starts of L1/moe_permute, without padding;
without topk_weights w is 1. Products accumulate in at least float32; y has the dtype of A and is rounded
after the product with w, or before and after it. Experts without slots are not read.
MXFP4GroupedLinear has weights of four bits, and a bias b[e(s)] that is added before the product with w. Its
`weight` [E, N, K/32, 16] holds two codes in a byte, the low half first, its `weight_scale` [E, N, K/32] the
exponents of groups of 32, both uint8; L1/low_bit_dequant says what numbers they are.
Mirrors vllm.model_executor.layers.fused_moe.fused_moe.invoke_fused_moe_kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.kernels.low_bit_dequant import GROUP


class GroupedLinear(nn.Module):
    def __init__(self, num_experts: int, input_size: int, output_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, output_size, input_size), requires_grad=False)

    def forward(
        self, A: Tensor, sorted_token_ids: Tensor, starts: Tensor, topk_weights: Tensor | None = None
    ) -> Tensor:
        """A [S / R, K], sorted_token_ids [S] and starts [E+1] int32, topk_weights [S] float32 -> [S, N]"""
        return kernels.grouped_linear(A, self.weight, sorted_token_ids, starts, topk_weights)


class MXFP4GroupedLinear(nn.Module):
    def __init__(self, num_experts: int, input_size: int, output_size: int) -> None:
        super().__init__()
        groups, rest = divmod(input_size, GROUP)
        if rest:
            raise ValueError(f"input_size must be a multiple of {GROUP}, not {input_size}")
        packed = torch.empty(num_experts, output_size, groups, GROUP // 2, dtype=torch.uint8)
        scales = torch.empty(num_experts, output_size, groups, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.weight_scale = nn.Parameter(scales, requires_grad=False)
        self.bias = nn.Parameter(torch.empty(num_experts, output_size), requires_grad=False)

    def forward(
        self, A: Tensor, sorted_token_ids: Tensor, starts: Tensor, topk_weights: Tensor | None = None
    ) -> Tensor:
        """A [S / R, K], sorted_token_ids [S] and starts [E+1] int32, topk_weights [S] float32 -> [S, N]"""
        weights = (self.weight, self.weight_scale, self.bias)
        return kernels.grouped_linear_mxfp4(A, *weights, sorted_token_ids, starts, topk_weights)
