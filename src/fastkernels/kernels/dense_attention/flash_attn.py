"""dense_attention by flash-attn's varlen kernel."""

from __future__ import annotations

from flash_attn import flash_attn_varlen_func  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels.dense_attention import limits


def unsupported(kernel: str, q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, *rest: object) -> str | None:
    return limits.flash(q_THK, k_SHK, v_SHK, bias=rest[-1])


def dense_attention(
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    query_starts_B1: Tensor,
    key_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
    max_key_len: int,
    causal: bool,
    bias_HQS: Tensor | None,
) -> Tensor:
    return flash_attn_varlen_func(
        q_THK,
        k_SHK,
        v_SHK,
        cu_seqlens_q=query_starts_B1,
        cu_seqlens_k=key_starts_B1,
        max_seqlen_q=max_query_len,
        max_seqlen_k=max_key_len,
        softmax_scale=scale,
        causal=causal,
    )
