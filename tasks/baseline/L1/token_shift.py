"""Each token mixed with the one before it in its request, by several shares of every channel.

    y[t, m] = x[t] + (x[t - 1] - x[t]) mixes[m]

T tokens, B rows of the step, D channels, M mixes, R rows of the pool. `cache` [R, D] holds the input before
each request's next token, the step's at `rows`; it is zero before a request's first token, float32 (at least)
whatever x is, written in place, and no other row of it is touched. Row 0 is null: what is written there is
never read. Computed in at least float32; y has the dtype of x. The first class takes the tokens of prefill
rows, the second one token of each decode row; both leave the same states.
Mirrors fla.modules.token_shift.token_shift followed by fla.ops.rwkv7.fused_addcmul.fused_addcmul_rwkv7, with
states in place.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class TokenShift(nn.Module):
    def __init__(self, num_mixes: int) -> None:
        super().__init__()
        self.num_mixes = num_mixes

    def forward(
        self, x: Tensor, mixes: Tensor, cache: Tensor, rows: Tensor, cu_seqlens: Tensor, max_query_len: int
    ) -> Tensor:
        """x [T, D] (rows may be strided), mixes [M, D] or [M D], cache [R, D] (written), rows int64 [B],
        cu_seqlens int32 [B+1] from 0 to T -> [T, M, D]"""
        mixes = mixes.view(self.num_mixes, -1)
        return kernels.token_shift(x, mixes, cache, rows, cu_seqlens, max_query_len)


class TokenShiftUpdate(nn.Module):
    def __init__(self, num_mixes: int) -> None:
        super().__init__()
        self.num_mixes = num_mixes

    def forward(self, x: Tensor, mixes: Tensor, cache: Tensor, rows: Tensor) -> Tensor:
        """x [B, D] (rows may be strided), mixes [M, D] or [M D], cache [R, D] (written), rows int64 [B]
        -> [B, M, D]"""
        mixes = mixes.view(self.num_mixes, -1)
        return kernels.token_shift_update(x, mixes, cache, rows)
