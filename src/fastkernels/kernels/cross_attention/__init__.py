"""Attention of a step's queries over what their requests keep of their source: keys and values of one length.

    o[i] = softmax(scale q[i] K[r]^T) V[r]        r the row where the request of query i keeps its states

T query tokens · B rows of the step · R rows of the pools · S keys of each · H heads · K head dim. Queries are
packed one row behind the other; every query of a row sees all S keys. Softmax and sums in at least float32,
rounded to the dtype of the query.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.cross_attention import reference
from fastkernels.kernels.work import Tally


def _work(
    tally: Tally, q_THK: Tensor, k: Tensor, v: Tensor, starts: Tensor, rows_B: Tensor, *_: object
) -> None:
    """Every query sees all keys that its request keeps."""
    tally.multiply(q_THK, 4 * q_THK.numel() * k.shape[1])
    for pool in (k, v):
        tally.read_kept(pool, len(rows_B))


_cross_attention = Kernel(
    "cross_attention",
    "(Tensor query, Tensor key, Tensor value, Tensor query_starts, Tensor rows, float scale, "
    "SymInt max_query_len) -> Tensor",
    reference.cross_attention,
    fake=lambda q_THK, *_: q_THK.new_empty(q_THK.shape),
    implementations=(
        Implementation("paged", f"{__name__}.paged"),
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda q_THK, *_: q_THK.shape[0],
    work=_work,
)


def cross_attention(
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """Attention output o_THK, in the dtype of the query, contiguous.

    The pools are contiguous, the last dimension of the query is; all have one dtype. query_starts_B1: int32
    from 0 to T; rows_B: int64, distinct but for padding. max_query_len: of the longest row (or an upper
    bound), known to the host; no host reads a tensor. Raises KernelError when `impl` cannot serve the call.
    """
    return _cross_attention(q_THK, k_RSHK, v_RSHK, query_starts_B1, rows_B, scale, max_query_len, impl=impl)
