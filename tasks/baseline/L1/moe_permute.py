"""Tokens by expert, and back: which slots each expert serves, and the sum over a token's experts.

    slot s = t k + j is the j-th expert of token t
    order = all slots by expert, the slots of one expert rising
    starts[e] = number of slots of experts before e
    y[t] = sum_j x[t, j]

T tokens, k experts of a token, E experts, S = T k slots, D hidden. Expert e serves the slots
order[starts[e] : starts[e+1]]. order and starts are exact and int32; y is summed in at least float32 and has
the dtype of x.
Mirrors vllm.model_executor.layers.fused_moe.moe_align_block_size.moe_align_block_size (here without padding:
how many rows a tile has is the product's own business) and vllm._custom_ops.moe_sum.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class MoEAlign(nn.Module):
    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(self, topk_ids: Tensor) -> tuple[Tensor, Tensor]:
        """[T, k] int32, each in [0, E) -> (order [S], starts [E+1])"""
        return kernels.moe_align(topk_ids, self.num_experts)


class MoESum(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """[T, k, D] -> [T, D]"""
        return kernels.moe_sum(input)
