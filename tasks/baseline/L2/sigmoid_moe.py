"""Sparse mixture of experts that is routed by sigmoids, beside experts that all tokens have.

    s = sigmoid(x Wg^T)
    e = the k largest of s + b;   w = scale s[e] / sum(s[e])
    y = sum_j w[j] expert_e[j](x) + shared(x)

T tokens, D hidden, E experts of width F; the shared ones are one block of their width together. Wg is [E, D];
b, a bias of each expert, moves the choice and no weight. x Wg^T is rounded to the dtype of x; s, b and w are
float32 (at least). The experts are those of L2/fused_experts, the shared one L2/gated_mlp. Rounded to the
dtype of x after each and after the sum.
Mirrors vllm.model_executor.models.kimi_linear.KimiMoE.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.routing import Router

from ..L1.linear import Linear
from ..L1.score_routing import TopKScores
from .fused_experts import FusedExperts
from .gated_mlp import GatedMLP


class SigmoidMoE(Router):
    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        shared_intermediate_size: int,
        renormalize: bool = True,
        routed_scaling_factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.gate = Linear(hidden_size, num_experts)
        wide = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.e_score_correction_bias = nn.Parameter(torch.empty(num_experts, dtype=wide), requires_grad=False)
        self.topk = TopKScores(top_k, renormalize, routed_scaling_factor)
        self.experts = FusedExperts(num_experts, hidden_size, intermediate_size)
        self.shared_experts = GatedMLP(hidden_size, shared_intermediate_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        scores_TE = self.gate(hidden_states).to(self.e_score_correction_bias.dtype).sigmoid()
        topk_weights, topk_ids = self.topk(scores_TE, scores_TE + self.e_score_correction_bias)
        routed_TD = self.experts(hidden_states, topk_weights, topk_ids)
        return routed_TD + self.shared_experts(hidden_states)
