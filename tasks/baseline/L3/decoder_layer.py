"""One pre-norm layer of a decoder-only transformer.

    h = hidden_states + residual
    a = h + attention(rms_norm(h; w_in))
    hidden_states, residual = mlp(rms_norm(a; w_post)), a

T tokens, D hidden. Without a residual (first layer) h = hidden_states; the caller adds the last pair. Each
sum is rounded to the dtype of the input and normalised as rounded.
Mirrors vllm.model_executor.models.llama.LlamaDecoderLayer (also Qwen2DecoderLayer, Qwen3DecoderLayer,
MistralDecoderLayer; without rope_parameters vllm.model_executor.models.jamba.JambaAttentionDecoderLayer) and,
with sub_norm_eps, transformers.models.bitnet.modeling_bitnet.BitNetDecoderLayer.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L1.rms_norm import RMSNorm
from ..L2.causal_attention import CausalAttention
from ..L2.gated_mlp import GatedMLP
from ..L2.normed_gated_mlp import NormedGatedMLP


class DecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any] | None,
        rms_norm_eps: float = 1e-6,
        hidden_act: str = "silu",
        qkv_bias: bool = False,
        mlp_bias: bool = False,
        qk_norm_eps: float | None = None,
        sliding_window: int | None = None,
        bias_o_proj: bool = False,
        sub_norm_eps: float | None = None,
        quant_method: str | None = None,
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
            qkv_bias,
            qk_norm_eps,
            sliding_window,
            bias_o_proj,
            sub_norm_eps,
            quant_method,
        )
        self.post_attention_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        if sub_norm_eps is None:
            self.mlp = GatedMLP(hidden_size, intermediate_size, hidden_act, mlp_bias)
        elif hidden_act == "relu2":
            self.mlp = NormedGatedMLP(hidden_size, intermediate_size, sub_norm_eps, mlp_bias, quant_method)
        else:
            raise ValueError(f"hidden_act must be 'relu2' with sub_norm_eps, not {hidden_act!r}")

    def forward(
        self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """positions [T], hidden_states and residual [T, D] -> (hidden_states, residual)"""
        if residual is None:
            normed_TD, sum_TD = self.input_layernorm(hidden_states), hidden_states
        else:
            normed_TD, sum_TD = self.input_layernorm(hidden_states, residual)
        attended_TD = self.self_attn(positions, normed_TD)
        normed_TD, sum_TD = self.post_attention_layernorm(attended_TD, sum_TD)
        return self.mlp(normed_TD), sum_TD
