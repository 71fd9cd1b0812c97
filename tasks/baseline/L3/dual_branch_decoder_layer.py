"""One layer of a decoder whose dense feed-forward block and mixture of experts run side by side.

    h = hidden_states + rms_norm(attention(rms_norm(hidden_states; w_in)); w_post)
    dense = mlp(rms_norm(h; w_pre1))
    chosen = experts(rms_norm(h; w_pre2), router(h))
    y = s (h + rms_norm(rms_norm(dense; w_post1) + rms_norm(chosen; w_post2); w_post3))

T tokens, D hidden; s is one number, which scales the whole residual stream. The router reads h through a norm
of its own. Rounded to the dtype of the input after each norm and each sum. The norms around the branches are
one kernel before them and one behind where all are the baseline's own; they round as the norms do.
Mirrors vllm.model_executor.models.gemma4.Gemma4DecoderLayer, without the residual that it passes through.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.rms_norm import RMSNorm
from ..L2.fused_experts import GeluExperts
from ..L2.gated_mlp import GatedMLP
from ..L2.normed_attention import NormedAttention
from ..L2.normed_router import NormedRouter


class DualBranchDecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any],
        num_experts: int,
        top_k: int,
        moe_intermediate_size: int,
        rms_norm_eps: float = 1e-6,
        sliding_window: int | None = None,
        k_eq_v: bool = False,
    ) -> None:
        super().__init__()
        eps = rms_norm_eps
        self.input_layernorm = RMSNorm(hidden_size, eps)
        self.self_attn = NormedAttention(
            hidden_size,
            num_heads,
            num_kv_heads,
            head_dim,
            max_position,
            rope_parameters,
            eps,
            sliding_window,
            k_eq_v,
        )
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden_size, eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size, "gelu_tanh")
        self.post_feedforward_layernorm_1 = RMSNorm(hidden_size, eps)
        self.router = NormedRouter(hidden_size, num_experts, top_k, eps)
        self.pre_feedforward_layernorm_2 = RMSNorm(hidden_size, eps)
        self.experts = GeluExperts(num_experts, hidden_size, moe_intermediate_size)
        self.post_feedforward_layernorm_2 = RMSNorm(hidden_size, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden_size, eps)
        self.layer_scalar = nn.Parameter(torch.empty(1), requires_grad=False)
        before = ("post_attention_layernorm", "pre_feedforward_layernorm", "pre_feedforward_layernorm_2")
        after = (f"post_feedforward_layernorm{i}" for i in ("_1", "_2", ""))
        self.fuses = Fusion(self, *before, "router.norm", *after)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """positions [T], hidden_states [T, D] -> [T, D]"""
        attended_TD = self.self_attn(positions, self.input_layernorm(hidden_states))
        if self.fuses and not hidden_states.is_meta:
            return self._between_fused_norms(attended_TD, hidden_states)
        h_TD = hidden_states + self.post_attention_layernorm(attended_TD)
        dense_TD = self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(h_TD)))
        topk_weights, topk_ids = self.router(h_TD)
        chosen_TD = self.experts(self.pre_feedforward_layernorm_2(h_TD), topk_weights, topk_ids)
        both_TD = dense_TD + self.post_feedforward_layernorm_2(chosen_TD)
        return (h_TD + self.post_feedforward_layernorm(both_TD)) * self.layer_scalar

    def _between_fused_norms(self, attended_TD: Tensor, hidden_TD: Tensor) -> Tensor:
        eps, norms = (
            self.input_layernorm.eps,
            (
                self.post_attention_layernorm.weight,
                self.pre_feedforward_layernorm.weight,
                self.router.norm.weight,
                self.pre_feedforward_layernorm_2.weight,
            ),
        )
        h_TD, dense_TD, routed_TD, chosen_TD = kernels.split_branches(attended_TD, hidden_TD, *norms, eps)
        dense_TD = self.mlp(dense_TD)
        topk_weights, topk_ids = self.router.choose(routed_TD)
        chosen_TD = self.experts(chosen_TD, topk_weights, topk_ids)
        norms = (
            self.post_feedforward_layernorm_1.weight,
            self.post_feedforward_layernorm_2.weight,
            self.post_feedforward_layernorm.weight,
        )
        return kernels.join_branches(dense_TD, chosen_TD, h_TD, *norms, self.layer_scalar, eps)
