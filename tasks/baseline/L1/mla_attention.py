"""Attention over latents (MLA, absorbed): all query heads read one entry of the cache for each token, whose
first part is its value too.

    cache[slot // P, slot % P] = [kv_c | k_pe]                                                   store
    o[i] = sum_s softmax_s(scale q[i] . cache[s]) cache[s, :L]        s <= p(i)                decode, prefill

T query tokens, B rows, H heads, L latent features, R others, N blocks of P tokens, M blocks in a row's table.
Query i of a row sits at p(i) = seq_len - query_len + i. Softmax and sums in at least float32; o has the dtype
of the query. Rows are stored exactly. Block 0 is the null block: what is written there is never read.
Mirrors vllm.v1.attention.backends.mla.common.MLACommonImpl (its decode path) and
vllm._custom_ops.concat_and_cache_mla.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class MLADecode(nn.Module):
    def __init__(self, kv_lora_rank: int, scale: float) -> None:
        super().__init__()
        self.kv_lora_rank, self.scale = kv_lora_rank, scale

    def forward(
        self, q: Tensor, kv_cache: Tensor, seq_lens: Tensor, block_table: Tensor, max_seq_len: int
    ) -> Tensor:
        """q [B, H, L + R], kv_cache [N, P, L + R], seq_lens int32 [B], block_table int32 [B, M]
        -> [B, H, L]"""
        return kernels.mla_decode(
            q, kv_cache, seq_lens, block_table, self.scale, self.kv_lora_rank, max_seq_len
        )


class MLAPrefill(nn.Module):
    def __init__(self, kv_lora_rank: int, scale: float) -> None:
        super().__init__()
        self.kv_lora_rank, self.scale = kv_lora_rank, scale

    def forward(
        self,
        q: Tensor,
        kv_cache: Tensor,
        query_start_loc: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        max_query_len: int,
        max_seq_len: int,
    ) -> Tensor:
        """q [T, H, L + R], kv_cache [N, P, L + R], query_start_loc int32 [B+1] from 0 to T, seq_lens int32
        [B], block_table int32 [B, M] -> [T, H, L]"""
        rows = (query_start_loc, seq_lens, block_table)
        return kernels.mla_prefill(
            q, kv_cache, *rows, self.scale, self.kv_lora_rank, max_query_len, max_seq_len
        )


class StoreLatent(nn.Module):
    def forward(self, kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        """kv_c [T, L], k_pe [T, R] (rows may be strided), kv_cache [N, P, L + R] (written), slot_mapping
        int64 [T]."""
        kernels.store_latent(kv_c, k_pe, kv_cache, slot_mapping)
