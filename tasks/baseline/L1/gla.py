"""Gated linear attention: a matrix for each head and request, decayed and added to by every token.

    S[t] = diag(exp(gate[t])) S[t-1] + key[t] value[t]^T        o[t] = scale S[t]^T query[t]

T tokens, B rows of the step, H heads, K key dim, V value dim, R rows of the pool; S is K x V. The gate is a
logarithm, at most 0 and unbounded below, for each channel of the key. `state` [R, H, K, V] holds S of every
request, the step's at `rows`; it is float32 (at least) whatever the inputs are, advanced in place, and no
other row of it is touched. Row 0 is null: what is written there is never read. Sums accumulate in at least
float32; o has the dtype of the query. `chunk` takes the tokens of prefill rows, `recurrent` one token of each
decode row, without synchronisation with the host; both leave the same states.
Mirrors fla.ops.gla.chunk_gla and fla.ops.gla.fused_recurrent_gla, with states in place.
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
        query: Tensor,
        key: Tensor,
        value: Tensor,
        gate: Tensor,
        state: Tensor,
        rows: Tensor,
        query_starts: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """query, key, gate [T, H, K] and value [T, H, V] (rows may be strided), state [R, H, K, V] (written),
        rows int64 [B], query_starts int32 [B+1] from 0 to T -> [T, H, V]"""
        return kernels.chunk_gla(
            query, key, value, gate, state, rows, query_starts, self.scale, max_query_len
        )


class RecurrentGLA(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, gate: Tensor, state: Tensor, rows: Tensor
    ) -> Tensor:
        """query, key, gate [B, H, K] and value [B, H, V] (rows may be strided), state [R, H, K, V] (written),
        rows int64 [B] -> [B, H, V]"""
        return kernels.recurrent_gla(query, key, value, gate, state, rows, self.scale)
