"""One pre-norm layer of a decoder-only transformer whose feed-forward block is a mixture of experts.

    h = hidden_states + residual
    a = h + attention(rms_norm(h; w_in))
    hidden_states, residual = moe(rms_norm(a; w_post)), a

T tokens, D hidden. Without a residual (first layer) h = hidden_states; the caller adds the last pair. Each
sum is rounded to the dtype of the input and normalised as rounded. Attention and residual stream are those of
L3/decoder_layer; a file of its own, so that dense models do not depend on experts.
MXFP4MoEDecoderLayer has biases in its attention, a sink for each head, and the experts of
L2/quantized_experts.
Mirrors vllm.model_executor.models.mixtral.MixtralDecoderLayer and gpt_oss.TransformerBlock; with qk_norm_eps
vllm.model_executor.models.qwen3_moe.Qwen3MoeDecoderLayer; without
rope_parameters and renormalize vllm.model_executor.models.jamba.JambaAttentionDecoderLayer.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L1.rms_norm import RMSNorm
from ..L2.causal_attention import CausalAttention
from ..L2.moe import MXFP4MoE, SparseMoE


class MoEDecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any] | None,
        num_experts: int,
        top_k: int,
        rms_norm_eps: float = 1e-6,
        renormalize: bool = True,
        sliding_window: int | None = None,
        qk_norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.self_attn = CausalAttention(
            hidden_size,
            num_heads,
            num_kv_heads,
            head_dim,
            max_position,
            rope_parameters,
            qk_norm_eps=qk_norm_eps,
            sliding_window=sliding_window,
        )
        self.post_attention_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.block_sparse_moe = SparseMoE(num_experts, top_k, hidden_size, intermediate_size, renormalize)

    def forward(
        self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """positions [T], or [3, T] with an mrope_section; hidden_states and residual [T, D] ->
        (hidden_states, residual)"""
        if residual is None:
            normed_TD, sum_TD = self.input_layernorm(hidden_states), hidden_states
        else:
            normed_TD, sum_TD = self.input_layernorm(hidden_states, residual)
        attended_TD = self.self_attn(positions, normed_TD)
        normed_TD, sum_TD = self.post_attention_layernorm(attended_TD, sum_TD)
        return self.block_sparse_moe(normed_TD), sum_TD


class MXFP4MoEDecoderLayer(MoEDecoderLayer):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any] | None,
        num_experts: int,
        top_k: int,
        limit: float,
        rms_norm_eps: float = 1e-6,
        sliding_window: int | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.input_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.self_attn = CausalAttention(
            hidden_size,
            num_heads,
            num_kv_heads,
            head_dim,
            max_position,
            rope_parameters,
            qkv_bias=True,
            sliding_window=sliding_window,
            bias_o_proj=True,
            has_sinks=True,
        )
        self.post_attention_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.block_sparse_moe = MXFP4MoE(num_experts, top_k, hidden_size, intermediate_size, limit)
