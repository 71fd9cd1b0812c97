"""Causal attention of several query tokens for each row over the row's paged cache.

    o[i] = softmax(scale * q[i] K^T) V        over keys j with i' - W < j <= i',  i' = seq_len - query_len + i

With sinks every query head has one more column in its softmax, its sink, which has no value.

T tokens · B rows · H query heads · J key/value heads (H / J query heads share one, contiguously) · K head dim
· P block size. Tokens before the row's queries (chunked prefill) are in the cache already.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.prefill_attention import reference
from fastkernels.kernels.providers import PROVIDERS
from fastkernels.kernels.work import Tally


def _work(tally: Tally, q_THK: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> None:
    _, seq_lens_B, _, _, window, *_ = rest
    tally.attend(q_THK, (k_cache, v_cache), tally.prefills(seq_lens_B), window)


_prefill_attention = Kernel(
    "prefill_attention",
    "(Tensor query, Tensor k_cache, Tensor v_cache, Tensor query_starts, Tensor seq_lens, "
    "Tensor block_tables, float scale, int window, SymInt max_query_len, SymInt max_seq_len, "
    "Tensor? sinks=None) -> Tensor",
    reference.prefill_attention,
    fake=lambda q_THK, *_: q_THK.new_empty(q_THK.shape),
    implementations=(
        Implementation("flashinfer", f"{__name__}.flashinfer", requires=("flashinfer",), extra="gpu"),
        Implementation("flash_attn", f"{__name__}.flash_attn", requires=("flash_attn",), extra="flash-attn"),
        Implementation("triton", f"{__name__}.triton"),
        Implementation("cudnn", f"{__name__}.cudnn"),
        Implementation("hopper", f"{__name__}.hopper"),
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


def prefill_attention(
    q_THK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int | None,
    max_query_len: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
    *,
    impl: str | None = None,
) -> Tensor:
    """Attention output o_THK, in the dtype of the query, contiguous.

    q_THK: last dimension contiguous. Row b owns tokens query_starts_B1[b] .. query_starts_B1[b + 1] - 1,
    counted from query_starts_B1[0], so that the rows behind a step's decode rows can be passed as slices.
    Their keys and values are in the cache already. k_cache, v_cache [blocks, P, J, K]: dtype of the query.
    Nothing outside a row's visible keys is used. query_starts_B1, seq_lens_B int32: seq_len counts the row's
    keys, its queries' own included. block_tables_BN int32: the row's block of positions nP .. nP + P - 1;
    entries behind its last key or wholly before the window of its first query may be anything. scale: factor
    of the scores, usually K ** -0.5. window: a query sees W keys, itself included; None for all.
    max_query_len, max_seq_len: longest query and sequence (or upper bounds), known to the host.
    sinks_H: a logit of each query head that joins the softmax as it is, unscaled, and adds nothing to the
    output; None for none. Raises KernelError when `impl` cannot serve the call.
    """
    args = (q_THK, k_cache, v_cache, query_starts_B1, seq_lens_B, block_tables_BN)
    return _prefill_attention(*args, scale, window or 0, max_query_len, max_seq_len, sinks_H, impl=impl)
