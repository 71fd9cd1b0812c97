"""The selective scan of Mamba over states that lie at the rows of the requests.

    step[t] = softplus(delta[t] + delta_bias)        A = -exp(A_log)
    h[t] = exp(step[t] A) h[t-1] + step[t] u[t] B[t]^T          h: I x N, the state of a request
    y[t] = (h[t] C[t] + D u[t]) silu(z[t])

T tokens · B rows of the step · R rows of the pool · I channels · N values of a channel's state. step and u
decay and feed channels, B and C are shared by all of them; A is negative, so no exponent is positive. States
are float32 at least, and so is all arithmetic; y is rounded once to the dtype of u. `selective_scan` takes
several tokens of each row, `selective_state_update` one; both leave the same states.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.policy import Entry
from fastkernels.kernels.selective_scan import reference

_ARGUMENTS = (
    "Tensor u, Tensor delta, Tensor B, Tensor C, Tensor z, Tensor A_log, Tensor D, Tensor delta_bias, "
    "Tensor(a!) state, Tensor rows"
)


def _like_u(u: Tensor, *_: object) -> Tensor:
    return u.new_empty(u.shape)


_selective_scan = Kernel(
    "selective_scan",
    f"({_ARGUMENTS}, Tensor query_starts, SymInt max_query_len) -> Tensor",
    reference.selective_scan,
    fake=_like_u,
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    # reference / torch, ms, of 1, 8 and 32 rows of 128 tokens: 7.9 / 2.1, 11.5 / 8.8, 28 / 40.
    cpu=(Entry("torch", 2048),),
    rows=lambda u_TI, *_: u_TI.shape[0],
    work=lambda tally, *args: tally.advance(args[8], tally.prefills(args[9])),
)

_selective_state_update = Kernel(
    "selective_state_update",
    f"({_ARGUMENTS}) -> Tensor",
    reference.selective_state_update,
    fake=_like_u,
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda u_BI, *_: u_BI.shape[0],
    work=lambda tally, *args: tally.advance(args[8], tally.decodes(args[9])),
)


def selective_scan(
    u_TI: Tensor,
    delta_TI: Tensor,
    B_TN: Tensor,
    C_TN: Tensor,
    z_TI: Tensor,
    A_log_IN: Tensor,
    D_I: Tensor,
    delta_bias_I: Tensor,
    state_RIN: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """y_TI, contiguous, in the dtype of u; each row's state advances by its tokens, in place.

    Rows of u, delta, B, C and z may be strided (views of packed products). A_log is float32 at least. Row b
    owns tokens query_starts_B1[b] .. query_starts_B1[b + 1] - 1, counted from query_starts_B1[0].
    query_starts_B1 int32; rows_B int64: the row of the pool, distinct but for the null row 0, whose state and
    output may be anything. No other row of the pool is read or written. max_query_len: longest query (or an
    upper bound), known to the host. Raises KernelError when `impl` cannot serve the call.
    """
    tokens, parameters = (u_TI, delta_TI, B_TN, C_TN, z_TI), (A_log_IN, D_I, delta_bias_I)
    args = (*tokens, *parameters, state_RIN, rows_B, query_starts_B1, max_query_len)
    return _selective_scan(*args, impl=impl)


def selective_state_update(
    u_BI: Tensor,
    delta_BI: Tensor,
    B_BN: Tensor,
    C_BN: Tensor,
    z_BI: Tensor,
    A_log_IN: Tensor,
    D_I: Tensor,
    delta_bias_I: Tensor,
    state_RIN: Tensor,
    rows_B: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """`selective_scan` of one token for each row: y_BI, contiguous; each row's state advances in place.

    Nothing is read on the host, so that one CUDA graph serves many steps. Raises KernelError when `impl`
    cannot serve the call.
    """
    tokens, parameters = (u_BI, delta_BI, B_BN, C_BN, z_BI), (A_log_IN, D_I, delta_bias_I)
    return _selective_state_update(*tokens, *parameters, state_RIN, rows_B, impl=impl)
