"""Causal attention of a step's tokens over one layer's paged cache: store new keys and values, then attend.

    cache <- (key, value)
    o[t] = sum_j softmax_j(scale q[t] . k[j]) v[j]      j in t's row, p(t) - W < j <= p(t)

T tokens, H query heads, J kv heads, K head size, p position, W window (none: infinite). The ambient step
says which rows and cache entries the tokens belong to: its first `num_decodes` rows have one token each and
take the decode kernel, the others the prefill kernel; with `has_sinks` both get the sinks of the query heads.
A step with one kind of rows makes no copy of the
query or the output. Softmax in at least float32; o has the dtype of the query.
Mirrors vllm.model_executor.layers.attention.Attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.cache import CacheOwner, Paged
from fastkernels.nn.context import prefill_starts, step

from ..L1.decode_attention import DecodeAttention
from ..L1.kv_cache import StoreKV
from ..L1.prefill_attention import PrefillAttention


class PagedAttention(CacheOwner):
    entries = ("forward", "attend")

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        per_layer_sliding_window: int | None = None,
        has_sinks: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.cache = Paged((num_kv_heads, head_size), per_layer_sliding_window)
        # A logit of each head that joins its softmax (L1/decode_attention).
        self.sinks = nn.Parameter(torch.empty(num_heads), requires_grad=False) if has_sinks else None
        self.store = StoreKV()
        self.decode = DecodeAttention(num_heads, head_size, num_kv_heads, scale, per_layer_sliding_window)
        self.prefill = PrefillAttention(num_heads, head_size, num_kv_heads, scale, per_layer_sliding_window)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, H*K], key and value [T, J*K] (rows may be strided) -> [T, H*K]. Writes the caches."""
        num_tokens = query.shape[0]
        q_THK = query.view(num_tokens, self.num_heads, self.head_size)
        k_TJK = key.view(num_tokens, self.num_kv_heads, self.head_size)
        v_TJK = value.view(num_tokens, self.num_kv_heads, self.head_size)
        self.store(k_TJK, v_TJK, self.k_cache, self.v_cache, step().slots_GT[self.group])
        return self.attend(q_THK)

    def attend(self, q: Tensor) -> Tensor:
        """-> [T, H*K], over caches that hold the keys and values of the step's tokens already."""
        now = step()
        num_decodes = now.num_decodes
        k_cache, v_cache = self.k_cache, self.v_cache
        tables_BM = now.block_tables_GBN[self.group]
        sinks = () if self.sinks is None else (self.sinks,)
        if now.max_query_len == 0:
            o_THK = self.decode(q, k_cache, v_cache, now.seq_lens_B, tables_BM, now.max_seq_len, *sinks)
        elif num_decodes == 0:
            o_THK = self.prefill(
                q,
                k_cache,
                v_cache,
                now.query_starts_B1,
                now.seq_lens_B,
                tables_BM,
                now.max_query_len,
                now.max_seq_len,
                *sinks,
            )
        else:
            decoded = self.decode(
                q[:num_decodes],
                k_cache,
                v_cache,
                now.seq_lens_B[:num_decodes],
                tables_BM[:num_decodes],
                now.max_seq_len,
                *sinks,
            )
            prefilled = self.prefill(
                q[num_decodes:],
                k_cache,
                v_cache,
                prefill_starts(now.query_starts_B1, num_decodes),
                now.seq_lens_B[num_decodes:],
                tables_BM[num_decodes:],
                now.max_query_len,
                now.max_seq_len,
                *sinks,
            )
            o_THK = torch.cat((decoded, prefilled))
        return o_THK.flatten(1)
