"""The recurrence of RWKV-7: a matrix for each head and request, from which every token removes what lies
under one key before it adds a value under another, with decay.

    S[t] = diag(exp(w[t])) S[t-1] - (kk[t] * a[t]) (kk[t]^T S[t-1]) + k[t] v[t]^T        o[t] = S[t]^T r[t]

T tokens, B rows of the step, H heads, K key dim, V value dim, R rows of the pool; S is K x V. What is removed
is read from S[t-1] before it decays. w is a logarithm for each channel of the key, from -exp(-1/2) to 0; kk
has length 1 in each head (or is zero), and a lies between 0 and 1. `state` [R, H, K, V] holds S of every
request, the step's at `rows`; it is float32 (at least) whatever the inputs are, advanced in place, and no
other row of it is touched. Row 0 is null: what is written there is never read. Sums accumulate in at least
float32; o has the dtype of r. The first class takes the tokens of prefill rows, the second one token of each
decode row, without synchronisation with the host; both leave the same states.
Mirrors fla.ops.rwkv7.fused_mul_recurrent_rwkv7 (and, of prefill rows, fla.ops.rwkv7.chunk_rwkv7 with a = -kk
and b = kk a), with scale 1 and states in place.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class ChunkRWKV7(nn.Module):
    def forward(
        self,
        r: Tensor,
        w: Tensor,
        k: Tensor,
        v: Tensor,
        kk: Tensor,
        a: Tensor,
        state: Tensor,
        rows: Tensor,
        cu_seqlens: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """r, w, k, kk, a [T, H, K] and v [T, H, V] (rows may be strided), state [R, H, K, V] (written),
        rows int64 [B], cu_seqlens int32 [B+1] from 0 to T -> [T, H, V]"""
        return kernels.chunk_rwkv7(r, w, k, v, kk, a, state, rows, cu_seqlens, max_query_len)


class RecurrentRWKV7(nn.Module):
    def forward(
        self,
        r: Tensor,
        w: Tensor,
        k: Tensor,
        v: Tensor,
        kk: Tensor,
        a: Tensor,
        state: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """r, w, k, kk, a [B, H, K] and v [B, H, V] (rows may be strided), state [R, H, K, V] (written),
        rows int64 [B] -> [B, H, V]"""
        return kernels.recurrent_rwkv7(r, w, k, v, kk, a, state, rows)
