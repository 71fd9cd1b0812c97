"""Feed-forward blocks of chosen experts whose weights have four bits, summed with their routing weights.

    u = swiglu(x[t] W13[e]^T + b13[e])                       for each expert e = topk_ids[t, j] of token t
    y[t] = sum_j topk_weights[t, j] (u W2[e]^T + b2[e])

T tokens, D hidden, E experts, F intermediate, k experts of a token. In W13 [E, 2F, D] rows of gate and up
projection alternate, W2 is [E, D, F], both in groups of 32 codes with a scale (MXFP4, L1/grouped_gemm);
swiglu is the clamped one of L1/glu. Rounded to the dtype of hidden_states after the first product, the
activation and the weighted second product; the sum is taken in float32 and rounded once. Where all parts are
the baseline's own they share launches, and round as they do.
Mirrors vllm.model_executor.layers.fused_moe.fused_moe.fused_experts, with an MXFP4 quant_config.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.glu import SwigluOAIAndMul
from ..L1.grouped_gemm import MXFP4GroupedLinear
from ..L1.moe_permute import MoEAlign, MoESum


class MXFP4Experts(nn.Module):
    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int, limit: float) -> None:
        super().__init__()
        self.align = MoEAlign(num_experts)
        self.w13 = MXFP4GroupedLinear(num_experts, hidden_size, 2 * intermediate_size)
        self.act_fn = SwigluOAIAndMul(limit=limit)
        self.w2 = MXFP4GroupedLinear(num_experts, intermediate_size, hidden_size)
        self.sum = MoESum()
        self.fuses = Fusion(self, "align", "w13", "act_fn", "w2", "sum")

    def forward(self, hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """hidden_states [T, D], topk_weights [T, k] float32, topk_ids [T, k] int32 -> [T, D]"""
        if self.fuses and not hidden_states.is_meta:
            w13, w2 = ((part.weight, part.weight_scale, part.bias) for part in (self.w13, self.w2))
            act = self.act_fn
            return kernels.experts_mxfp4(
                hidden_states, topk_weights, topk_ids, *w13, *w2, act.alpha, act.limit
            )
        order, starts = self.align(topk_ids)
        active = self.act_fn(self.w13(hidden_states, order, starts))
        weighted = self.w2(active, order, starts, topk_weights.flatten())
        return self.sum(weighted.view(*topk_ids.shape, hidden_states.shape[-1]))
