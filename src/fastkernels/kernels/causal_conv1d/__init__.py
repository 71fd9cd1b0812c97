"""Depthwise causal convolution over time with silu, whose last inputs lie at the rows of the requests.

    c[t] = bias + sum_j weight[:, j] x[t - (K-1) + j]         j = 0 .. K-1, x of the same request
    y[t] = silu(c[t])

T tokens · B rows of the step · R rows of the pool · C channels · K width of the kernel. `state` [R, K-1, C]
holds the inputs before a request's next token, oldest first, zeros before its first; float32 at least, so
that inputs are kept exactly. Arithmetic is in its dtype; y is rounded once to the dtype of x. `causal_conv1d`
takes several tokens of each row, `causal_conv1d_update` one; both leave the same states.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.causal_conv1d import reference


def _like_x(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


_causal_conv1d = Kernel(
    "causal_conv1d",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) state, Tensor rows, Tensor query_starts, "
    "SymInt max_query_len) -> Tensor",
    reference.causal_conv1d,
    fake=_like_x,
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda x_TC, *_: x_TC.shape[0],
)

_causal_conv1d_update = Kernel(
    "causal_conv1d_update",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) state, Tensor rows) -> Tensor",
    reference.causal_conv1d_update,
    fake=_like_x,
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda x_BC, *_: x_BC.shape[0],
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
