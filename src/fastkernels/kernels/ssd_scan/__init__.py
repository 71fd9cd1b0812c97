"""The scan of Mamba 2 (SSD) over states that lie at the rows of the requests.

    step[t] = softplus(dt[t] + dt_bias)        A = -exp(A_log)                one number for each head
    S[t] = exp(step[t] A) S[t-1] + step[t] x[t] B[t]^T          S: P x N, the state of a head
    y[t] = S[t] C[t] + D x[t]

T tokens · B rows of the step · R rows of the pool · H heads of P channels · G groups · N values of a
channel's state. B and C are shared by the H / G consecutive heads of a group; A is negative, so no exponent
is positive. States are float32 at least, and so are all sums; y is rounded once to the dtype of x. `ssd_scan`
takes several tokens of each row, `ssd_state_update` one; both leave the same states. What `ssd_scan`
multiplies for 16-bit inputs may be rounded to their dtype first, as tensor cores need it: operands, never the
state that is kept.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.policy import Entry
from fastkernels.kernels.ssd_scan import reference
from fastkernels.kernels.work import Rows, Tally

_ARGUMENTS = (
    "Tensor x, Tensor dt, Tensor B, Tensor C, Tensor A_log, Tensor D, Tensor dt_bias, Tensor(a!) state, "
    "Tensor rows"
)


def _like_x(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _work(tally: Tally, x_THP: Tensor, state_RHPN: Tensor, requests: Rows) -> None:
    """Each token adds to a state and reads it."""
    tally.multiply(x_THP, 4 * x_THP.numel() * state_RHPN.shape[-1])
    tally.advance(state_RHPN, requests)


_ssd_scan = Kernel(
    "ssd_scan",
    f"({_ARGUMENTS}, Tensor query_starts, SymInt max_query_len) -> Tensor",
    reference.ssd_scan,
    fake=_like_x,
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("fla", f"{__name__}.fla", requires=("fla",), extra="gpu"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    cpu=(Entry("torch"),),
    rows=lambda x_THP, *_: x_THP.shape[0],
    work=lambda tally, *args: _work(tally, args[0], args[7], tally.prefills(args[8])),
)

_ssd_state_update = Kernel(
    "ssd_state_update",
    f"({_ARGUMENTS}) -> Tensor",
    reference.ssd_state_update,
    fake=_like_x,
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("fla", f"{__name__}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda x_BHP, *_: x_BHP.shape[0],
    work=lambda tally, *args: _work(tally, args[0], args[7], tally.decodes(args[8])),
)


def ssd_scan(
    x_THP: Tensor,
    dt_TH: Tensor,
    B_TGN: Tensor,
    C_TGN: Tensor,
    A_log_H: Tensor,
    D_H: Tensor,
    dt_bias_H: Tensor,
    state_RHPN: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """y_THP, contiguous, in the dtype of x; each row's state advances by its tokens, in place.

    x, dt, B and C may have any strides with a contiguous last dimension (views of packed products). A_log is
    float32 at least. Row b owns tokens query_starts_B1[b] .. query_starts_B1[b + 1] - 1, counted from
    query_starts_B1[0]. query_starts_B1 int32; rows_B int64: the row of the pool, distinct but for the null
    row 0, whose state and output may be anything. No other row of the pool is read or written. max_query_len:
    longest query (or an upper bound), known to the host. Raises KernelError when `impl` cannot serve the
    call.
    """
    tokens, parameters = (x_THP, dt_TH, B_TGN, C_TGN), (A_log_H, D_H, dt_bias_H)
    return _ssd_scan(*tokens, *parameters, state_RHPN, rows_B, query_starts_B1, max_query_len, impl=impl)


def ssd_state_update(
    x_BHP: Tensor,
    dt_BH: Tensor,
    B_BGN: Tensor,
    C_BGN: Tensor,
    A_log_H: Tensor,
    D_H: Tensor,
    dt_bias_H: Tensor,
    state_RHPN: Tensor,
    rows_B: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """`ssd_scan` of one token for each row: y_BHP, contiguous; each row's state advances in place.

    Nothing is read on the host, so that one CUDA graph serves many steps. Raises KernelError when `impl`
    cannot serve the call.
    """
    tokens, parameters = (x_BHP, dt_BH, B_BGN, C_BGN), (A_log_H, D_H, dt_bias_H)
    return _ssd_state_update(*tokens, *parameters, state_RHPN, rows_B, impl=impl)
