"""Gated feed-forward blocks of chosen experts, summed with their routing weights.

    u = act(x[t] W13[e, :F]^T) * (x[t] W13[e, F:]^T)        for each expert e = topk_ids[t, j] of token t
    y[t] = sum_j topk_weights[t, j] u W2[e]^T

T tokens, D hidden, E experts, F intermediate, k experts of a token. W13 [E, 2F, D] packs gate and up
projection of an expert, gate first; W2 is [E, D, F]. act: silu, in GeluExperts gelu_tanh. The weight
multiplies the output, never the input: the activation is not linear. Rounded to the dtype of hidden_states
after the first product, the activation and the weighted second product; the sum is taken in float32 and
rounded once. The first product and the activation are one kernel where both are the baseline's own.
Mirrors vllm.model_executor.layers.fused_moe.fused_moe.fused_experts, GeluExperts with activation="gelu_tanh".
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.kernels.glu import Activation
from fastkernels.nn.fusion import Fusion

from ..L1.glu import GeluAndMul, SiluAndMul
from ..L1.grouped_gemm import GroupedLinear
from ..L1.moe_permute import MoEAlign, MoESum


class FusedExperts(nn.Module):
    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.align = MoEAlign(num_experts)
        self.w13 = GroupedLinear(num_experts, hidden_size, 2 * intermediate_size)
        self.act_fn: nn.Module = SiluAndMul()
        self.w2 = GroupedLinear(num_experts, intermediate_size, hidden_size)
        self.sum = MoESum()
        self.activation: Activation = "silu"
        self.fuses = Fusion(self, "w13", "act_fn")

    def forward(self, hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """hidden_states [T, D], topk_weights [T, k] float32, topk_ids [T, k] int32 -> [T, D]"""
        order, starts = self.align(topk_ids)
        if self.fuses and not hidden_states.is_meta:
            active = kernels.grouped_linear_glu(
                hidden_states, self.w13.weight, order, starts, self.activation
            )
        else:
            active = self.act_fn(self.w13(hidden_states, order, starts))
        weighted = self.w2(active, order, starts, topk_weights.flatten())
        return self.sum(weighted.view(*topk_ids.shape, hidden_states.shape[-1]))


class GeluExperts(FusedExperts):
    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__(num_experts, hidden_size, intermediate_size)
        self.act_fn, self.activation = GeluAndMul("tanh"), "gelu_tanh"
        self.fuses = Fusion(self, "w13", "act_fn")
