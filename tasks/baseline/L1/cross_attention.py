"""Attention over what requests keep of their source: keys and values of one length.

    o[i] = sum_j softmax_j(scale q[i] . key_cache[r, j]) value_cache[r, j]        0 <= j < S

B rows of the step, r the row of i's request, T query tokens, R rows of the pools, S keys of each request,
H heads, K head size. Every query sees all keys of its request; there is no mask. Softmax and sums in at
least float32; o has the dtype of the query. Row 0 is null: padding reads it, and what it gives counts
nowhere. No synchronisation with the host.
Mirrors vllm.model_executor.layers.attention.cross_attention.CrossAttention, with a run of keys for
each request in the place of blocks.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class CrossAttention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        query_start_loc: Tensor,
        rows: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """query [T, H, K] (rows may be strided), caches [R, S, H, K], query_start_loc int32 [B+1] from 0 to
        T, rows int64 [B] -> [T, H, K]"""
        return kernels.cross_attention(
            query, key_cache, value_cache, query_start_loc, rows, self.scale, max_query_len
        )
