"""A linear layer in which every row has its own weight: that of its expert.

    y[s] = w[s] W[e(s)] x[s // R]

S slots (t k + j for the j-th expert of token t), E experts, R = S / rows of x: slots that share a row of x,
k where x has a row for each token. W is [E, N, K]. Slot s belongs to the expert e with s in order[starts[e] :
starts[e+1]], as L1/moe_permute gives them; without slot_weights w is 1. Products accumulate in at least
float32; y has the dtype of x and is rounded after the product with w, or before and after it. Experts without
slots are not read.
Mirrors vllm.model_executor.layers.fused_moe.fused_moe.invoke_fused_moe_kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class GroupedLinear(nn.Module):
    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features), requires_grad=False)

    def forward(self, x: Tensor, order: Tensor, starts: Tensor, slot_weights: Tensor | None = None) -> Tensor:
        """x [S / R, K], order [S] and starts [E+1] int32, slot_weights [S] float32 -> [S, N]"""
        return kernels.grouped_linear(x, self.weight, order, starts, slot_weights)
