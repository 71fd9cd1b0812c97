"""Attention of one query token for each row over the row's paged cache.

    o = softmax(scale * q K^T) V        over the row's keys: positions seq_len - W .. seq_len - 1, or all

With sinks every query head has one more column in its softmax, its sink, which has no value.

B rows · H query heads · J key/value heads (H / J query heads share one, contiguously) · K head dim · P block
size
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.decode_attention import reference
from fastkernels.kernels.providers import PROVIDERS
from fastkernels.kernels.work import Tally


def _work(tally: Tally, q_BHK: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> None:
    seq_lens_B, _, _, window, *_ = rest
    tally.attend(q_BHK, (k_cache, v_cache), tally.decodes(seq_lens_B), window)


_decode_attention = Kernel(
    "decode_attention",
    "(Tensor query, Tensor k_cache, Tensor v_cache, Tensor seq_lens, Tensor block_tables, float scale, "
    "int window, SymInt max_seq_len, Tensor? sinks=None) -> Tensor",
    reference.decode_attention,
    fake=lambda q_BHK, *_: q_BHK.new_empty(q_BHK.shape),
    implementations=(
        Implementation("flashinfer", f"{__name__}.flashinfer", requires=("flashinfer",), extra="gpu"),
        Implementation("triton", f"{__name__}.triton"),
        Implementation("flash_attn", f"{__name__}.flash_attn", requires=("flash_attn",), extra="flash-attn"),
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
    rows=lambda q_BHK, *_: q_BHK.shape[0],
    work=_work,
)


def decode_attention(
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int | None,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
    *,
    impl: str | None = None,
) -> Tensor:
    """Attention output o_BHK, in the dtype of the query, contiguous.

    q_BHK: last dimension contiguous. Its own key and value are in the cache already.
    k_cache, v_cache [blocks, P, J, K]: dtype of the query. Nothing outside the row's visible keys is used.
    seq_lens_B int32: keys of each row; 0 is a padding row, whose output is zeros.
    block_tables_BN int32: the row's block of positions nP .. nP + P - 1; entries behind its last key or
    wholly before its window may be anything. scale: factor of the scores, usually K ** -0.5. window: the row
    sees its last W keys only; None for all. max_seq_len: upper bound of seq_lens_B, known to the host; a
    captured CUDA graph may be replayed with other lengths up to it (`triton`, `hopper`, `flash_attn`, `torch`
    and `reference`). sinks_H: a logit of each query head that joins the softmax as it is, unscaled, and adds
    nothing to the output; None for none. Raises KernelError when `impl` cannot serve the call.
    """
    args = (q_BHK, k_cache, v_cache, seq_lens_B, block_tables_BN, scale, window or 0, max_seq_len)
    return _decode_attention(*args, sinks_H, impl=impl)
