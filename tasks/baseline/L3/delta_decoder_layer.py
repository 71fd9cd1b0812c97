"""One pre-norm layer of a decoder of Gated DeltaNet blocks and gated attention, with experts.

    h = hidden_states + residual
    a = h + mix(gemma_rms_norm(h; w_in))
    hidden_states, residual = moe(gemma_rms_norm(a; w_post)), a

T tokens, D hidden; mix is Gated DeltaNet, or gated attention (full_attention). Without a residual (first
layer) h = hidden_states; the caller adds the last pair. Each sum is rounded to the dtype of the input and
normalised as rounded. DeltaNet needs no positions: the states carry the order.
Mirrors vllm.model_executor.models.qwen3_next.Qwen3NextDecoderLayer (layer_type linear_attention and
full_attention).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L1.rms_norm import GemmaRMSNorm
from ..L2.delta_attention import GatedDeltaNet
from ..L2.gated_attention import GatedAttention
from ..L2.shared_expert_moe import SharedExpertMoE


class DeltaDecoderLayer(nn.Module):
    def __init__(
        self, hidden_size: int, linear: dict[str, Any], moe: dict[str, Any], rms_norm_eps: float = 1e-6
    ) -> None:
        """linear, moe: the arguments of the block and of the experts, less hidden_size and epsilons."""
        super().__init__()
        self.input_layernorm = GemmaRMSNorm(hidden_size, rms_norm_eps)
        self.linear_attn = GatedDeltaNet(hidden_size, **linear, layer_norm_epsilon=rms_norm_eps)
        self.post_attention_layernorm = GemmaRMSNorm(hidden_size, rms_norm_eps)
        self.mlp = SharedExpertMoE(hidden_size=hidden_size, **moe)

    def forward(
        self, hidden_states: Tensor, residual: Tensor | None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        if residual is None:
            normed_TD, sum_TD = self.input_layernorm(hidden_states), hidden_states
        else:
            normed_TD, sum_TD = self.input_layernorm(hidden_states, residual)
        normed_TD, sum_TD = self.post_attention_layernorm(self.linear_attn(normed_TD), sum_TD)
        return self.mlp(normed_TD), sum_TD


class GatedAttentionDecoderLayer(nn.Module):
    def __init__(
        self, hidden_size: int, attention: dict[str, Any], moe: dict[str, Any], rms_norm_eps: float = 1e-6
    ) -> None:
        """attention, moe: the arguments of the block and of the experts, less hidden_size and epsilons."""
        super().__init__()
        self.input_layernorm = GemmaRMSNorm(hidden_size, rms_norm_eps)
        self.self_attn = GatedAttention(hidden_size, **attention, rms_norm_eps=rms_norm_eps)
        self.post_attention_layernorm = GemmaRMSNorm(hidden_size, rms_norm_eps)
        self.mlp = SharedExpertMoE(hidden_size=hidden_size, **moe)

    def forward(
        self, hidden_states: Tensor, residual: Tensor | None, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D], positions [T] -> (hidden_states, residual)"""
        if residual is None:
            normed_TD, sum_TD = self.input_layernorm(hidden_states), hidden_states
        else:
            normed_TD, sum_TD = self.input_layernorm(hidden_states, residual)
        attended_TD = self.self_attn(positions, normed_TD)
        normed_TD, sum_TD = self.post_attention_layernorm(attended_TD, sum_TD)
        return self.mlp(normed_TD), sum_TD
