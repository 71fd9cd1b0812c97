"""Causal attention of ragged queries over a paged cache that already holds their keys and values.

    o[i] = sum_j softmax_j(scale q[i] . k[j]) v[j]        j <= p(i),  and j > p(i) - W with a window W

With `sinks` each query head's softmax has one more logit, its sink, unscaled and without a value.

B rows, T query tokens in all, H query heads, J kv heads, K head size, N blocks of P tokens, M blocks in a
row's table. Query i of a row sits at p(i) = seq_len - query_len + i: earlier tokens may have been stored by
earlier chunks. Query head h reads kv head h // (H / J). Softmax and sums in at least float32; o has the
dtype of the query.
Mirrors vllm.v1.attention.backends.flash_attn.FlashAttentionImpl (prefill rows; flash_attn_varlen_func).
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class PrefillAttention(nn.Module):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        num_kv_heads: int,
        scale: float,
        sliding_window: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.sliding_window = scale, sliding_window

    def forward(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        query_start_loc: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        max_query_len: int,
        max_seq_len: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """query [T, H, K], caches [N, P, J, K], query_start_loc int32 [B+1] from 0 to T, seq_lens int32 [B],
        block_table int32 [B, M], sinks [H] -> [T, H, K]."""
        return kernels.prefill_attention(
            query,
            key_cache,
            value_cache,
            query_start_loc,
            seq_lens,
            block_table,
            self.scale,
            self.sliding_window,
            max_query_len,
            max_seq_len,
            sinks,
        )
