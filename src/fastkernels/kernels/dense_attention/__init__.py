"""Attention of packed rows: every query of a row sees every key of the row, or those up to itself.

    o[h, i] = softmax(scale * q[h, i] K[j]^T + bias[h, i]) V[j]        over the keys of i's row, j = h J // H

T query tokens · S key tokens · B rows · H heads of queries · J of keys, a divisor of H · K head dim. Rows are
packed one behind the other, queries and keys each by their own starts: self-attention gives the same starts
twice, pooling one query a row. A bias is added to the scores by the places of query and key in their row,
alike for all rows. Causal: query i of a row sees its keys 0 .. i. Softmax and sums in at least
float32, rounded to the dtype of the query.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.dense_attention import reference
from fastkernels.kernels.providers import PROVIDERS
from fastkernels.kernels.work import Tally, visible_pairs


def _work(
    tally: Tally, q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, query_starts: Tensor, *rest: Any
) -> None:
    """Every query of a row sees all its keys, or those up to itself; with one query a row, that is every key
    once. A module that makes its rows itself, all of one length, has no batch to say so."""
    _, _, query_len, key_len, causal, _ = rest
    count = len(query_starts) - 1
    if len(q_THK) == count * query_len and len(k_SHK) == count * key_len:
        rows = [(query_len, key_len)] * count
    else:
        rows = [(min(query, query_len), seq) for query, seq in tally.requests()]
    pairs = sum(visible_pairs(*row, 0) if causal else prod(row) for row in rows)
    tally.multiply(q_THK, 4 * q_THK.shape[-1] * q_THK.shape[-2] * pairs)


_dense_attention = Kernel(
    "dense_attention",
    "(Tensor query, Tensor key, Tensor value, Tensor query_starts, Tensor key_starts, float scale, "
    "SymInt max_query_len, SymInt max_key_len, bool causal, Tensor? bias) -> Tensor",
    reference.dense_attention,
    fake=lambda q_THK, *_: q_THK.new_empty(q_THK.shape),
    implementations=(
        Implementation("cudnn", f"{__name__}.cudnn"),
        Implementation("flash_attn", f"{__name__}.flash_attn", requires=("flash_attn",), extra="flash-attn"),
        Implementation("aten_flash", f"{__name__}.aten_flash"),
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
        Implementation("vllm", f"{PROVIDERS}.vllm_attention", requires=("vllm",), extra="vllm"),
        Implementation(
            "flash_attn_3",
            f"{PROVIDERS}.flash_attn_3",
            requires=("flash_attn_interface",),
            extra="flash-attn-3",
        ),
        Implementation(
            "flash_attn_4",
            f"{PROVIDERS}.flash_attn_4",
            requires=("flash_attn.cute", "cutlass"),
            extra="flash-attn-4",
        ),
        Implementation(
            "sgl_kernel", f"{PROVIDERS}.sgl_attention", requires=("sgl_kernel",), extra="sgl-kernel"
        ),
    ),
    rows=lambda q_THK, *_: q_THK.shape[0],
    work=_work,
)


def dense_attention(
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    query_starts_B1: Tensor,
    key_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
    max_key_len: int,
    causal: bool = False,
    bias_HQS: Tensor | None = None,
    *,
    impl: str | None = None,
) -> Tensor:
    """Attention output o_THK, in the dtype of the query, contiguous.

    The last dimension of q, k and v is contiguous; all have one dtype. Row b owns queries query_starts_B1[b]
    .. query_starts_B1[b + 1] - 1 and keys likewise; int32, from 0 to T and to S. A row with queries has
    keys; keys of a row without queries are not read. scale: factor of the scores, usually K ** -0.5.
    max_query_len, max_key_len: of the longest row (or upper bounds), known to the host. causal: rows have as
    many queries as keys. bias: finite, in the dtype of the query, at least as long as the longest
    row, its last dimension contiguous. Raises KernelError when `impl` cannot serve the call.
    """
    starts, extent = (query_starts_B1, key_starts_B1), (max_query_len, max_key_len)
    return _dense_attention(q_THK, k_SHK, v_SHK, *starts, scale, *extent, causal, bias_HQS, impl=impl)
