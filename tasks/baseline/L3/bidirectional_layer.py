"""One pre-norm layer of a diffusion language model, or of a policy that sees a prefix.

    h = hidden_states + residual
    a = h + attention(rms_norm(h; w_in))
    hidden_states, residual = mlp(rms_norm(a; w_post)), a

N tokens, D hidden. Attention in both directions, over the keys and values of all tokens of a row. Without a
residual (first layer) h = hidden_states; the caller adds the last pair. Each sum is rounded to the dtype of
the input and normalised as rounded. The norms of the variant gemma have weights around zero, to which 1 is
added.
Mirrors transformers.models.llama.modeling_llama.LlamaDecoderLayer without its mask (and Fast-dLLM's
LLaDALlamaBlock), and transformers.models.gemma.modeling_gemma.GemmaDecoderLayer with
use_bidirectional_attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L1.rms_norm import GemmaRMSNorm, RMSNorm
from ..L2.bidirectional_attention import BidirectionalAttention
from ..L2.gated_mlp import GatedMLP


class BidirectionalLayer(nn.Module):
    norm: type[nn.Module] = RMSNorm

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any],
        rms_norm_eps: float = 1e-5,
        num_kv_heads: int | None = None,
        hidden_act: str = "silu",
    ) -> None:
        super().__init__()
        self.input_layernorm = self.norm(hidden_size, rms_norm_eps)
        self.self_attn = BidirectionalAttention(
            hidden_size, num_heads, head_dim, max_position, rope_parameters, num_kv_heads
        )
        self.post_attention_layernorm = self.norm(hidden_size, rms_norm_eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size, hidden_act)

    def forward(
        self,
        positions: Tensor,
        hidden_states: Tensor,
        residual: Tensor | None,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [N, D], the others as of BidirectionalAttention ->
        (hidden_states, residual)"""
        if residual is None:
            normed_ND, sum_ND = self.input_layernorm(hidden_states), hidden_states
        else:
            normed_ND, sum_ND = self.input_layernorm(hidden_states, residual)
        caches, rows = (
            (key_cache, value_cache, slots),
            (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
        )
        attended_ND = self.self_attn(positions, normed_ND, *caches, *rows)
        normed_ND, sum_ND = self.post_attention_layernorm(attended_ND, sum_ND)
        return self.mlp(normed_ND), sum_ND


class GemmaBidirectionalLayer(BidirectionalLayer):
    norm = GemmaRMSNorm
