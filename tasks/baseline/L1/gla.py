"""Gated linear attention: a matrix for each head and request, decayed and added to by every token.

    S[t] = diag(exp(g[t])) S[t-1] + k[t] v[t]^T        o[t] = scale S[t]^T q[t]
    retention: g[t] = log(1 - 2^(-5-h)) for every channel of head h = 0 .. H-1

T tokens, B rows of the step, H heads, K key dim, V value dim, R rows of the pool; S is K x V. The gate g is a
logarithm, at most 0 and unbounded below, for each channel of the key (the second class calls it gk). `state`
[R, H, K, V] holds S of every request, the step's at `rows`; it is float32 (at least) whatever the inputs
are, advanced in place, and no other row of it is touched. Row 0 is null: what is written there is never
read. Sums accumulate in at least float32; o has the dtype of the query. Of each pair of classes the first
takes the tokens of prefill rows, the second one token of each decode row, without synchronisation with the
host; both leave the same states.
Mirrors fla.ops.gla.chunk_gla and fla.ops.gla.fused_recurrent_gla, as retention
fla.ops.retention.chunk_retention and fla.ops.retention.fused_recurrent_retention, with states in place.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class ChunkGLA(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        state: Tensor,
        rows: Tensor,
        cu_seqlens: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """q, k, g [T, H, K] and v [T, H, V] (rows may be strided), state [R, H, K, V] (written),
        rows int64 [B], cu_seqlens int32 [B+1] from 0 to T -> [T, H, V]"""
        return kernels.chunk_gla(q, k, v, g, state, rows, cu_seqlens, self.scale, max_query_len)


class RecurrentGLA(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor, gk: Tensor, state: Tensor, rows: Tensor) -> Tensor:
        """q, k, gk [B, H, K] and v [B, H, V] (rows may be strided), state [R, H, K, V] (written),
        rows int64 [B] -> [B, H, V]"""
        return kernels.recurrent_gla(q, k, v, gk, state, rows, self.scale)


class ChunkRetention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: Tensor,
        rows: Tensor,
        cu_seqlens: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """q, k [T, H, K] and v [T, H, V] (rows may be strided), state [R, H, K, V] (written), rows int64 [B],
        cu_seqlens int32 [B+1] from 0 to T -> [T, H, V]"""
        return kernels.chunk_gla(q, k, v, None, state, rows, cu_seqlens, self.scale, max_query_len)


class RecurrentRetention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor, state: Tensor, rows: Tensor) -> Tensor:
        """q, k [B, H, K] and v [B, H, V] (rows may be strided), state [R, H, K, V] (written),
        rows int64 [B] -> [B, H, V]"""
        return kernels.recurrent_gla(q, k, v, None, state, rows, self.scale)
