"""Each token mixed with the one before it, by several shares of every channel.

    y[t, m] = x[t] + (x[t - 1] - x[t]) mixes[m]           x of the same request

T tokens · B rows of the step · R rows of the pool · D channels · M mixes. `state` [R, D] holds the input
before a request's next token, zeros before its first; float32 at least, so that inputs are kept exactly.
Arithmetic is in its dtype; y is rounded once to the dtype of x. `token_shift` takes several tokens of each
row, `token_shift_update` one; both leave the same states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _mixed(x_TD: Tensor, before_TD: Tensor, mixes_MD: Tensor) -> Tensor:
    x = x_TD.to(before_TD.dtype)
    y_TMD = x[:, None] + (before_TD - x)[:, None] * mixes_MD.to(x.dtype)
    return y_TMD.to(x_TD.dtype)


def _reference_token_shift(
    x_TD: Tensor,
    mixes_MD: Tensor,
    state_RD: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    starts_B1 = query_starts_B1.long() - query_starts_B1[0]
    x = x_TD.to(state_RD.dtype)
    before_TD = torch.roll(x, 1, 0)
    has_tokens_B = starts_B1.diff() > 0
    rows, first, last = (i[has_tokens_B] for i in (rows_B, starts_B1[:-1], starts_B1[1:] - 1))
    before_TD[first] = state_RD[rows]
    state_RD[rows] = x[last]
    return _mixed(x_TD, before_TD, mixes_MD)


def _reference_token_shift_update(x_BD: Tensor, mixes_MD: Tensor, state_RD: Tensor, rows_B: Tensor) -> Tensor:
    before_BD = state_RD[rows_B]
    state_RD[rows_B] = x_BD.to(state_RD.dtype)
    return _mixed(x_BD, before_BD, mixes_MD)


def _of_mixes(x: Tensor, mixes: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape[0], *mixes.shape)


_token_shift = Kernel(
    "token_shift",
    "(Tensor x, Tensor mixes, Tensor(a!) state, Tensor rows, Tensor query_starts, SymInt max_query_len) "
    "-> Tensor",
    _reference_token_shift,
    fake=_of_mixes,
    implementations=(Implementation("triton", f"{__name__}_triton"),),
    rows=lambda x_TD, *_: x_TD.shape[0],
    work=lambda tally, x, mixes, state, rows_B, *_: tally.advance(state, tally.prefills(rows_B)),
)

_token_shift_update = Kernel(
    "token_shift_update",
    "(Tensor x, Tensor mixes, Tensor(a!) state, Tensor rows) -> Tensor",
    _reference_token_shift_update,
    fake=_of_mixes,
    implementations=(Implementation("triton", f"{__name__}_triton"),),
    rows=lambda x_BD, *_: x_BD.shape[0],
    work=lambda tally, x, mixes, state, rows_B: tally.advance(state, tally.decodes(rows_B)),
)


def token_shift(
    x_TD: Tensor,
    mixes_MD: Tensor,
    state_RD: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """y_TMD, contiguous, in the dtype of x; each row's state becomes its last token, in place.

    Rows of x may be strided. Row b owns tokens query_starts_B1[b] .. query_starts_B1[b + 1] - 1, counted from
    query_starts_B1[0]; the state of a row without tokens stays. query_starts_B1 int32; rows_B int64: the row
    of the pool, distinct but for the null row 0, whose state and output may be anything. No other row of the
    pool is read or written. max_query_len: longest query (or an upper bound), known to the host. Raises
    KernelError when `impl` cannot serve the call.
    """
    return _token_shift(x_TD, mixes_MD, state_RD, rows_B, query_starts_B1, max_query_len, impl=impl)


def token_shift_update(
    x_BD: Tensor, mixes_MD: Tensor, state_RD: Tensor, rows_B: Tensor, *, impl: str | None = None
) -> Tensor:
    """`token_shift` of one token for each row: y_BMD, contiguous; each row's state becomes it, in place.

    Nothing is read on the host, so that one CUDA graph serves many steps. Raises KernelError when `impl`
    cannot serve the call.
    """
    return _token_shift_update(x_BD, mixes_MD, state_RD, rows_B, impl=impl)
