"""Depthwise causal convolution over time with silu, whose last inputs lie at the rows of the requests.

    c[t] = bias + sum_j weight[:, j] x[t - (K-1) + j]         j = 0 .. K-1, x of the same request
    y[t] = silu(c[t])

T tokens · B rows of the step · R rows of the pool · C channels · K width of the kernel. `state` [R, K-1, C]
holds the inputs before a request's next token, oldest first, zeros before its first; float32 at least, so
that inputs are kept exactly. Arithmetic is in its dtype; y is rounded once to the dtype of x. `causal_conv1d`
takes several tokens of each row, `causal_conv1d_update` one; both leave the same states.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.providers import PROVIDERS


def _like_x(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _reference_causal_conv1d(
    x_TC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    state_RPC: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    num_tokens, device, past = x_TC.shape[0], x_TC.device, state_RPC.shape[1]
    lens_B = query_starts_B1.diff().long()
    row_B, past_P = torch.arange(len(lens_B), device=device), torch.arange(past, device=device)
    row_T = torch.repeat_interleave(row_B, lens_B, output_size=num_tokens)
    # Row b begins at its first token and b rows' pasts, and its own past comes first.
    begin_B = query_starts_B1[:-1].long() - query_starts_B1[0] + row_B * past
    at_T = torch.arange(num_tokens, device=device) + (row_T + 1) * past
    inputs = state_RPC.new_empty(num_tokens + len(lens_B) * past, x_TC.shape[1])
    inputs[at_T] = x_TC.to(inputs.dtype)
    inputs[begin_B[:, None] + past_P] = state_RPC[rows_B]
    total_TC = torch.zeros((), dtype=inputs.dtype, device=device)
    for j, weight_C in enumerate(weight_CK.to(inputs.dtype).unbind(1)):
        total_TC = total_TC + inputs[at_T - past + j] * weight_C
    state_RPC[rows_B] = inputs[(begin_B + lens_B)[:, None] + past_P]
    return _activated(total_TC, bias_C).to(x_TC.dtype)


def _reference_causal_conv1d_update(
    x_BC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, state_RPC: Tensor, rows_B: Tensor
) -> Tensor:
    inputs_BKC = torch.cat((state_RPC[rows_B], x_BC[:, None].to(state_RPC.dtype)), 1)
    state_RPC[rows_B] = inputs_BKC[:, 1:]
    total_BC = (inputs_BKC * weight_CK.T.to(inputs_BKC.dtype)).sum(1)
    return _activated(total_BC, bias_C).to(x_BC.dtype)


def _activated(total: Tensor, bias_C: Tensor | None) -> Tensor:
    return silu(total if bias_C is None else total + bias_C.to(total.dtype))


_causal_conv1d = Kernel(
    "causal_conv1d",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) state, Tensor rows, Tensor query_starts, "
    "SymInt max_query_len) -> Tensor",
    _reference_causal_conv1d,
    fake=_like_x,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda x_TC, *_: x_TC.shape[0],
    work=lambda tally, x, w, b, state, rows_B, *_: tally.advance(state, tally.prefills(rows_B)),
)

_causal_conv1d_update = Kernel(
    "causal_conv1d_update",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) state, Tensor rows) -> Tensor",
    _reference_causal_conv1d_update,
    fake=_like_x,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda x_BC, *_: x_BC.shape[0],
    work=lambda tally, x, w, b, state, rows_B: tally.advance(state, tally.decodes(rows_B)),
)


def causal_conv1d(
    x_TC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    state_RPC: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """y_TC, contiguous, in the dtype of x; each row's state moves on by its tokens, in place.

    Rows of x may be strided (a half of a packed product). Row b owns tokens query_starts_B1[b] ..
    query_starts_B1[b + 1] - 1, counted from query_starts_B1[0]. query_starts_B1 int32; rows_B int64: the row
    of the pool, distinct but for the null row 0, whose state and output may be anything. No other row of the
    pool is read or written. max_query_len: longest query (or an upper bound), known to the host. Raises
    KernelError when `impl` cannot serve the call.
    """
    args = (x_TC, weight_CK, bias_C, state_RPC, rows_B, query_starts_B1, max_query_len)
    return _causal_conv1d(*args, impl=impl)


def causal_conv1d_update(
    x_BC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    state_RPC: Tensor,
    rows_B: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """`causal_conv1d` of one token for each row: y_BC, contiguous; each row's state moves on, in place.

    Nothing is read on the host, so that one CUDA graph serves many steps. Raises KernelError when `impl`
    cannot serve the call.
    """
    return _causal_conv1d_update(x_BC, weight_CK, bias_C, state_RPC, rows_B, impl=impl)
