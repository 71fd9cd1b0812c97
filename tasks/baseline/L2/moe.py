"""Sparse mixture-of-experts block: a router chooses k experts for each token.

    r = x Wg^T
    w, e = the k largest of softmax(r), renormalised
    y = sum_j w[j] expert_e[j](x)

T tokens, D hidden, E experts, F intermediate. Wg is [E, D]. r is rounded to the dtype of x; the softmax is
float32. The experts are those of L2/fused_experts. Two experts whose logits differ by less than a rounding
may be exchanged; inputs that are judged choose clearly.
MXFP4MoE has a bias in its router, r = x Wg^T + bg, which is one kernel for few tokens, and the experts of
L2/quantized_experts.
Mirrors vllm.model_executor.models.mixtral.MixtralMoE and gpt_oss.MLPBlock.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion
from fastkernels.nn.routing import Router

from ..L1.linear import Linear
from ..L1.moe_routing import TopKSoftmax
from .fused_experts import FusedExperts
from .quantized_experts import MXFP4Experts


class SparseMoE(Router):
    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        renormalize: bool = True,
    ) -> None:
        super().__init__()
        self.gate = Linear(hidden_size, num_experts)
        self.topk = TopKSoftmax(top_k, renormalize)
        self.experts = FusedExperts(num_experts, hidden_size, intermediate_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        topk_weights, topk_ids = self.topk(self.gate(hidden_states))
        return self.experts(hidden_states, topk_weights, topk_ids)


class MXFP4MoE(Router):
    def __init__(
        self, num_experts: int, top_k: int, hidden_size: int, intermediate_size: int, limit: float
    ) -> None:
        super().__init__()
        self.gate = Linear(hidden_size, num_experts, bias=True)
        self.topk = TopKSoftmax(top_k, renormalize=True)
        self.experts = MXFP4Experts(num_experts, hidden_size, intermediate_size, limit)
        self.fuses = Fusion(self, "gate", "topk")

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        if self.fuses and not hidden_states.is_meta:
            gate, topk = self.gate, self.topk
            routed = kernels.linear_topk(hidden_states, gate.weight, gate.bias, topk.top_k, topk.renormalize)
        else:
            routed = self.topk(self.gate(hidden_states))
        return self.experts(hidden_states, *routed)
