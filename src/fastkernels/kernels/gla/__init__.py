"""Gated linear attention over states that lie at the rows of the requests.

    S[t] = diag(exp(gate[t])) S[t-1] + k[t] v[t]^T            S: K x V, the state of a head
    o[t] = scale S[t]^T q[t]                                  the token's own k v^T is included

T tokens · B rows of the step · R rows of the pool · H heads · K key dim · V value dim. The gate is a
logarithm, at most 0 and unbounded below, one for each channel of the key: it decays rows of S. Without a gate
a head decays at a rate of its own, as in retention: head h keeps 1 - 2^(-5-h) of S at every token. States are
float32 at least, and so are all sums; o is rounded once to the dtype of the query. `chunk_gla` takes several
tokens for each row, `recurrent_gla` one; both leave the same states. What `chunk_gla` multiplies for 16-bit
inputs may be rounded to their dtype first, as tensor cores need it: operands, never the state that is kept.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.gla import reference
from fastkernels.kernels.policy import Entry
from fastkernels.kernels.work import Tally


def _chunk_work(
    tally: Tally, q: Tensor, k: Tensor, v: Tensor, gate: object, state: Tensor, rows_B: Tensor, *_: object
) -> None:
    """Each token adds to a state and reads it."""
    tally.multiply(q, 4 * q.numel() * v.shape[-1])
    tally.advance(state, tally.prefills(rows_B))


def _recurrent_work(
    tally: Tally, q: Tensor, k: Tensor, v: Tensor, gate: object, state: Tensor, rows_B: Tensor, *_: object
) -> None:
    tally.multiply(q, 4 * q.numel() * v.shape[-1])
    tally.advance(state, tally.decodes(rows_B))


_chunk_gla = Kernel(
    "chunk_gla",
    "(Tensor query, Tensor key, Tensor value, Tensor? gate, Tensor(a!) state, Tensor rows, "
    "Tensor query_starts, float scale, SymInt max_query_len) -> Tensor",
    reference.chunk_gla,
    fake=lambda q_THK, k_THK, v_THV, *_: q_THK.new_empty(v_THV.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("fla", f"{__name__}.fla", requires=("fla",), extra="gpu"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    # reference / torch, ms, of 1, 8 and 32 rows of 128 tokens: 3.4 / 1.1, 4.0 / 3.6, 5.7 / 13.1.
    cpu=(Entry("torch", 1024),),
    rows=lambda q_THK, *_: q_THK.shape[0],
    work=_chunk_work,
)

_recurrent_gla = Kernel(
    "recurrent_gla",
    "(Tensor query, Tensor key, Tensor value, Tensor? gate, Tensor(a!) state, Tensor rows, float scale) "
    "-> Tensor",
    reference.recurrent_gla,
    fake=lambda q_BHK, k_BHK, v_BHV, *_: q_BHK.new_empty(v_BHV.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("fla", f"{__name__}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda q_BHK, *_: q_BHK.shape[0],
    work=_recurrent_work,
)


def chunk_gla(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    gate_THK: Tensor | None,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """Output o_THV, contiguous, in the dtype of the query; each row's state advances by its tokens, in place.

    Any strides with a contiguous last dimension (views of a packed product). Row b owns tokens
    query_starts_B1[b] .. query_starts_B1[b + 1] - 1, counted from query_starts_B1[0], so that the rows behind
    a step's decode rows can be passed as slices. query_starts_B1 int32; rows_B int64: the row of the pool,
    distinct but for the null row 0, whose state and output may be anything. No other row of the pool is read
    or written. max_query_len: longest query (or an upper bound), known to the host. Raises KernelError when
    `impl` cannot serve the call.
    """
    args = (q_THK, k_THK, v_THV, gate_THK, state_RHKV, rows_B, query_starts_B1, scale, max_query_len)
    return _chunk_gla(*args, impl=impl)


def recurrent_gla(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    gate_BHK: Tensor | None,
    state_RHKV: Tensor,
    rows_B: Tensor,
    scale: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """`chunk_gla` of one token for each row: output o_BHV, contiguous; each row's state advances in place.

    Nothing is read on the host, so that one CUDA graph serves many steps. Raises KernelError when `impl`
    cannot serve the call.
    """
    return _recurrent_gla(q_BHK, k_BHK, v_BHV, gate_BHK, state_RHKV, rows_B, scale, impl=impl)
