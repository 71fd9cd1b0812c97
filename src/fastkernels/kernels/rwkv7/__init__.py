"""The recurrence of RWKV-7 over states that lie at the rows of the requests: a delta rule with decay.

    S[t] = diag(exp(w[t])) S[t-1] - (kk[t] * a[t]) (kk[t]^T S[t-1]) + k[t] v[t]^T     S: K x V, of a head
    o[t] = S[t]^T r[t]

T tokens · B rows of the step · R rows of the pool · H heads · K key dim · V value dim. What is removed is
read from S[t-1] before it decays. w is a logarithm, one for each channel of the key, within -0.61 .. 0; kk
has length 1 (or 0) in each head, and a lies within 0 .. 1: outside of that, states grow without bound and
exponents of a chunk of 64 tokens overflow float32. States are float32 at least, and so are all sums; o is
rounded once to the dtype of r. `chunk_rwkv7` takes several tokens for each row, `recurrent_rwkv7` one; both
leave the same states. What `chunk_rwkv7` multiplies for 16-bit inputs may be rounded first, as tensor cores
need it: operands, never the state that is kept.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.policy import Entry
from fastkernels.kernels.rwkv7 import reference
from fastkernels.kernels.work import Tally


def _chunk_work(
    tally: Tally, r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, state: Tensor,
    rows_B: Tensor, *_: object
) -> None:  # fmt: skip
    """Each token adds to a state and reads it twice, and takes from it."""
    tally.multiply(r, 8 * r.numel() * v.shape[-1])
    tally.advance(state, tally.prefills(rows_B))


def _recurrent_work(
    tally: Tally, r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, state: Tensor,
    rows_B: Tensor
) -> None:  # fmt: skip
    tally.multiply(r, 8 * r.numel() * v.shape[-1])
    tally.advance(state, tally.decodes(rows_B))


_chunk_rwkv7 = Kernel(
    "chunk_rwkv7",
    "(Tensor r, Tensor w, Tensor k, Tensor v, Tensor kk, Tensor a, Tensor(a!) state, Tensor rows, "
    "Tensor query_starts, SymInt max_query_len) -> Tensor",
    reference.chunk_rwkv7,
    fake=lambda r_THK, w, k, v_THV, *_: r_THK.new_empty(v_THV.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("fla", f"{__name__}.fla", requires=("fla",), extra="gpu"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    cpu=(Entry("torch"),),
    rows=lambda r_THK, *_: r_THK.shape[0],
    work=_chunk_work,
)

_recurrent_rwkv7 = Kernel(
    "recurrent_rwkv7",
    "(Tensor r, Tensor w, Tensor k, Tensor v, Tensor kk, Tensor a, Tensor(a!) state, Tensor rows) -> Tensor",
    reference.recurrent_rwkv7,
    fake=lambda r_BHK, w, k, v_BHV, *_: r_BHK.new_empty(v_BHV.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("fla", f"{__name__}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda r_BHK, *_: r_BHK.shape[0],
    work=_recurrent_work,
)


def chunk_rwkv7(
    r_THK: Tensor,
    w_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    kk_THK: Tensor,
    a_THK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """Output o_THV, contiguous, in the dtype of r; each row's state advances by its tokens, in place.

    Any strides with a contiguous last dimension (views of a packed product). Row b owns tokens
    query_starts_B1[b] .. query_starts_B1[b + 1] - 1, counted from query_starts_B1[0], so that the rows behind
    a step's decode rows can be passed as slices. query_starts_B1 int32; rows_B int64: the row of the pool,
    distinct but for the null row 0, whose state and output may be anything. No other row of the pool is read
    or written. max_query_len: longest query (or an upper bound), known to the host. Raises KernelError when
    `impl` cannot serve the call.
    """
    args = (r_THK, w_THK, k_THK, v_THV, kk_THK, a_THK, state_RHKV, rows_B, query_starts_B1, max_query_len)
    return _chunk_rwkv7(*args, impl=impl)


def recurrent_rwkv7(
    r_BHK: Tensor,
    w_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    kk_BHK: Tensor,
    a_BHK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """`chunk_rwkv7` of one token for each row: output o_BHV, contiguous; each row's state advances in place.

    Nothing is read on the host, so that one CUDA graph serves many steps. Raises KernelError when `impl`
    cannot serve the call.
    """
    return _recurrent_rwkv7(r_BHK, w_BHK, k_BHK, v_BHV, kk_BHK, a_BHK, state_RHKV, rows_B, impl=impl)
