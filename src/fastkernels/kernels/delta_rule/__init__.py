"""The gated delta rule over states that lie at the rows of the requests, with a decay for each head or for
each channel of the key (KDA).

    S[t] = D S[t-1] + k[t] e[t]^T        e[t] = beta[t] (v[t] - (D S[t-1])^T k[t])        S: K x V, of a head
    o[t] = scale S[t]^T q[t]             D = diag(exp(-exp(A_log) softplus(g[t] + dt_bias)))
    q, k = q / sqrt(|q|^2 + 1e-6), k / sqrt(|k|^2 + 1e-6)                beta[t] = sigmoid(b[t])

T tokens · B rows of the step · R rows of the pool · J heads of keys · H heads of values · K key dim · V value
dim · G gates of a head: 1, or K. Consecutive heads of values share a head of keys and queries. What a state
holds for a key is replaced by a share beta of the value: e reads the state that is decayed already. States
are float32 at least, and so are gates, directions and all sums; o is rounded once to the dtype of the query.
`chunk_delta_rule` takes several tokens for each row, `recurrent_delta_rule` one; both leave the same states.
What `chunk_delta_rule` multiplies for 16-bit inputs may be rounded to their dtype first, as tensor cores need
it: operands, never the state that is kept.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.delta_rule import reference
from fastkernels.kernels.policy import Entry
from fastkernels.kernels.work import Rows, Tally

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor gate, Tensor beta, Tensor A_log, Tensor dt_bias, "
    "float scale, Tensor(a!) state, Tensor rows"
)


def _like_value(query: Tensor, key: Tensor, value: Tensor, *_: object) -> Tensor:
    return query.new_empty(value.shape)


def _work(tally: Tally, q_TJK: Tensor, v_THV: Tensor, state_RHKV: Tensor, requests: Rows) -> None:
    """Each token reads a state by its key, adds to it, and reads it by its query."""
    tally.multiply(q_TJK, 6 * v_THV.numel() * q_TJK.shape[-1])
    tally.advance(state_RHKV, requests)


_chunk_delta_rule = Kernel(
    "chunk_delta_rule",
    f"({_ARGUMENTS}, Tensor query_starts, SymInt max_query_len) -> Tensor",
    reference.chunk_delta_rule,
    fake=_like_value,
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("fla", f"{__name__}.fla", requires=("fla",), extra="gpu"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    cpu=(Entry("torch"),),
    rows=lambda q_TJK, *_: q_TJK.shape[0],
    work=lambda tally, *args: _work(tally, args[0], args[2], args[8], tally.prefills(args[9])),
)

_recurrent_delta_rule = Kernel(
    "recurrent_delta_rule",
    f"({_ARGUMENTS}) -> Tensor",
    reference.recurrent_delta_rule,
    fake=_like_value,
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("fla", f"{__name__}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda q_BJK, *_: q_BJK.shape[0],
    work=lambda tally, *args: _work(tally, args[0], args[2], args[8], tally.decodes(args[9])),
)


def chunk_delta_rule(
    q_TJK: Tensor,
    k_TJK: Tensor,
    v_THV: Tensor,
    g_THG: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """o_THV, contiguous, in the dtype of the query; each row's state advances by its tokens, in place.

    g is [T, H] with dt_bias [H], or [T, H, K] with dt_bias [H, K]: before softplus. b is before the sigmoid.
    q, k, v, g and b may have any strides with a contiguous last dimension (views of packed products). A_log
    is float32 at least. Row b owns tokens query_starts_B1[b] .. query_starts_B1[b + 1] - 1, counted from
    query_starts_B1[0]. query_starts_B1 int32; rows_B int64: the row of the pool, distinct but for the null
    row 0, whose state and output may be anything. No other row of the pool is read or written. max_query_len:
    longest query (or an upper bound), known to the host. Raises KernelError when `impl` cannot serve the
    call.
    """
    tokens, others = (q_TJK, k_TJK, v_THV, g_THG, b_TH), (A_log_H, dt_bias_HG, scale, state_RHKV)
    return _chunk_delta_rule(*tokens, *others, rows_B, query_starts_B1, max_query_len, impl=impl)


def recurrent_delta_rule(
    q_BJK: Tensor,
    k_BJK: Tensor,
    v_BHV: Tensor,
    g_BHG: Tensor,
    b_BH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
    state_RHKV: Tensor,
    rows_B: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """`chunk_delta_rule` of one token for each row: o_BHV, contiguous; each row's state advances in place.

    Nothing is read on the host, so that one CUDA graph serves many steps. Raises KernelError when `impl`
    cannot serve the call.
    """
    tokens, others = (q_BJK, k_BJK, v_BHV, g_BHG, b_BH), (A_log_H, dt_bias_HG, scale, state_RHKV)
    return _recurrent_delta_rule(*tokens, *others, rows_B, impl=impl)
