"""Attention blocks of a decoder that listens to an encoder: over its own tokens, and over its source.

    default    [q | k | v] = x Wqkv^T + b;  y = attention(q, k, v) Wo^T + bo     causal, over the paged cache
    cross      q = x Wq^T + bq;  y = attention(q, K, V) Wo^T + bo                over all states of its source
               [K | V] = e Wkv^T + bkv                                           once, when a request begins

T tokens, D hidden, H heads, K = D / H head size, A requests that begin, S states of each source; scale
1/sqrt(K). Positions are in x already: nothing is rotated. A request keeps its K and V at its row. Rounded to
the dtype of x after each line.
Mirrors vllm.model_executor.models.whisper.WhisperAttention (decoder) and WhisperCrossAttention.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels.nn.cache import CacheOwner, State
from fastkernels.nn.context import step

from ..L1.cross_attention import CrossAttention
from ..L1.linear import Linear
from ..L1.store_cross import StoreCross
from .paged_attention import PagedAttention
from .parallel_linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear


class DecoderSelfAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        head_size = embed_dim // num_heads
        self.qkv_proj = QKVParallelLinear(embed_dim, head_size, num_heads, num_heads, bias=True)
        self.attn = PagedAttention(num_heads, head_size, head_size**-0.5, num_heads)
        self.out_proj = RowParallelLinear(embed_dim, embed_dim, bias=True)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        q, k, v = self.qkv_proj(hidden_states).chunk(3, dim=-1)
        return self.out_proj(self.attn(q, k, v))


class DecoderCrossAttention(CacheOwner):
    k_state: Tensor
    v_state: Tensor

    def __init__(self, embed_dim: int, num_heads: int, max_source_positions: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, embed_dim // num_heads
        shape = (max_source_positions, num_heads, self.head_size)
        self.cache = State((("k_state", shape), ("v_state", shape)), source="cross")
        self.q_proj = Linear(embed_dim, embed_dim, bias=True)
        self.kv_proj = MergedColumnParallelLinear(embed_dim, [embed_dim, embed_dim], bias=True)
        self.store = StoreCross()
        self.attn = CrossAttention(self.head_size**-0.5)
        self.out_proj = RowParallelLinear(embed_dim, embed_dim, bias=True)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        """hidden_states [T, D]; encoder_hidden_states [A*S, D] of the requests that begin in this step, in
        the order of Step.begun_A, None without any -> [T, D]. Writes the states of those requests."""
        now = step()
        if encoder_hidden_states is not None:
            heads = (2, self.num_heads, self.head_size)
            k, v = self.kv_proj(encoder_hidden_states).unflatten(-1, heads).unbind(1)
            assert now.begun_A is not None, "encoder states, and no request begins"
            self.store(k, v, self.k_state, self.v_state, now.begun_A)
        q_THK = self.q_proj(hidden_states).unflatten(-1, (self.num_heads, self.head_size))
        longest = max(1, now.max_query_len)
        states = (self.k_state, self.v_state)
        o_THK = self.attn(q_THK, *states, now.query_starts_B1, now.rows_B, longest)
        return self.out_proj(o_THK.flatten(1))
