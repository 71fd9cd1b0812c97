"""Self-attention block of a diffusion language model, or of a policy with a prefix: project, rotate, store,
attend in both directions.

    [q | k | v] = x Wqkv^T
    q, k = rope(positions, q, k)
    key_cache[slots], value_cache[slots] = k, v
    y = attention(q, key_cache, value_cache) Wo^T

N query tokens of B rows, D hidden, H query heads, J key heads, K head size; T tokens of all rows lie
packed in the caches. A query sees every token of its row, those behind it too. The queries may be all tokens
of their rows, or some: the others' keys and values are those of an earlier call. Scale 1/sqrt(K). Rounded to
the dtype of x after each line. Without queries of its own, a row is keys that no one sees.
Mirrors the attention of transformers.models.llama.modeling_llama.LlamaAttention without its mask, and the
replaced positions of Fast-dLLM's LLaDABlock, whose cache holds keys before their rotation; also
transformers.models.gemma.modeling_gemma.GemmaAttention with use_bidirectional_attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L1.dense_attention import BlockAttention
from ..L1.rope import RotaryEmbedding
from .parallel_linear import QKVParallelLinear, RowParallelLinear


class BidirectionalAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any],
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, kv_heads = head_dim, num_kv_heads or num_heads
        self.sizes = [num_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        self.qkv_proj = QKVParallelLinear(hidden_size, head_dim, num_heads, kv_heads, False)
        self.rotary_emb = RotaryEmbedding(head_dim, max_position, rope_parameters)
        self.attn = BlockAttention(head_dim**-0.5)
        self.o_proj = RowParallelLinear(num_heads * head_dim, hidden_size)

    def forward(
        self,
        positions: Tensor,
        hidden_states: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> Tensor:
        """positions int64 [N], hidden_states [N, D], caches [T, J, K] (written), slots int64 [N], all
        different, cu_seqlens_q int32 [B+1] from 0 to N, cu_seqlens_k int32 [B+1] from 0 to T ->
        [N, D]"""
        q, k, v = self.qkv_proj(hidden_states).split(self.sizes, dim=-1)
        q, k = self.rotary_emb(positions, q, k)
        q_NHK, k_NJK, v_NJK = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        key_cache.index_copy_(0, slots, k_NJK)
        value_cache.index_copy_(0, slots, v_NJK)
        starts, extent = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
        return self.o_proj(self.attn(q_NHK, key_cache, value_cache, *starts, *extent).flatten(1))
