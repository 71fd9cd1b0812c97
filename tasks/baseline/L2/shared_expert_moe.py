"""Sparse mixture of experts beside one expert that all tokens have, behind a gate of its own.

    r = x Wg^T
    w, e = the k largest of softmax(r), renormalised
    y = sum_j w[j] expert_e[j](x) + sigmoid(x Ws^T) shared_expert(x)

T tokens, D hidden, E experts of width F, S width of the shared one. Wg is [E, D], Ws [1, D]. r is rounded to
the dtype of x; the softmax is float32. The experts are those of L2/fused_experts, the shared one
L2/gated_mlp. Rounded to the dtype of x after each expert's part and the sum.
Mirrors vllm.model_executor.models.qwen3_next.Qwen3NextSparseMoeBlock.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.nn.routing import Router

from ..L1.linear import Linear
from ..L1.moe_routing import TopKSoftmax
from ..L1.sigmoid_gate import SigmoidGate
from .fused_experts import FusedExperts
from .gated_mlp import GatedMLP


class SharedExpertMoE(Router):
    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        shared_intermediate_size: int,
        renormalize: bool = True,
    ) -> None:
        super().__init__()
        self.gate = Linear(hidden_size, num_experts)
        self.topk = TopKSoftmax(top_k, renormalize)
        self.experts = FusedExperts(num_experts, hidden_size, intermediate_size)
        self.shared_expert = GatedMLP(hidden_size, shared_intermediate_size)
        self.shared_expert_gate = Linear(hidden_size, 1)
        self.join = SigmoidGate()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        topk_weights, topk_ids = self.topk(self.gate(hidden_states))
        routed_TD = self.experts(hidden_states, topk_weights, topk_ids)
        shared_TD = self.shared_expert(hidden_states)
        return self.join(shared_TD, self.shared_expert_gate(hidden_states), routed_TD)
