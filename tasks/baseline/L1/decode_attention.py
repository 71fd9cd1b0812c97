"""Attention of one query for each row over a paged cache that already holds its key and value.

    o = sum_j softmax_j(scale q . k[j]) v[j]        0 <= j < seq_len,  and j >= seq_len - W with a window W

With `sinks` each query head's softmax has one more logit, its sink, unscaled and without a value.

B rows, H query heads, J kv heads, K head size, N blocks of P tokens, M blocks in a row's table. A row with
seq_len 0 is padding and gives zeros. Query head h reads kv head h // (H / J). Softmax and sums in at least
float32; o has the dtype of the query. No synchronisation with the host: max_seq_len is an upper bound, so
that one CUDA graph serves many steps.
Mirrors vllm.v1.attention.backends.flash_attn.FlashAttentionImpl (decode rows; paged split-KV).
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class DecodeAttention(nn.Module):
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
        seq_lens: Tensor,
        block_table: Tensor,
        max_seq_len: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """query [B, H, K], caches [N, P, J, K], int32 seq_lens [B] and block_table [B, M], sinks [H] ->
        [B, H, K]."""
        return kernels.decode_attention(
            query,
            key_cache,
            value_cache,
            seq_lens,
            block_table,
            self.scale,
            self.sliding_window,
            max_seq_len,
            sinks,
        )
