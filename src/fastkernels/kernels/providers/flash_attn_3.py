"""Attention by FlashAttention-3 from its own package, over a paged cache or of packed rows; no sinks."""

from __future__ import annotations

from typing import Any

from flash_attn_interface import (  # pyright: ignore[reportMissingImports]
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from torch import Tensor

from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.providers import flash_attention


def unsupported(kernel: str, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    reason = flash_attention.unsupported(kernel, q, k, v, *rest)
    return reason or limits.no_sinks(flash_attention.sinks(kernel, rest))


def prefill_attention(
    q_THK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_query_len: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> Tensor:
    if len(q_THK) == 0:
        return q_THK.new_empty(q_THK.shape)
    return flash_attn_with_kvcache(
        q_THK,
        k_cache,
        v_cache,
        cache_seqlens=seq_lens_B,
        page_table=block_tables_BN,
        cu_seqlens_q=flash_attention.from_zero(query_starts_B1),
        max_seqlen_q=max_query_len,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (-1, -1),
    )


def decode_attention(
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> Tensor:
    if len(q_BHK) == 0:
        return q_BHK.new_empty(q_BHK.shape)
    o_B1HK = flash_attn_with_kvcache(
        q_BHK[:, None],
        k_cache,
        v_cache,
        cache_seqlens=seq_lens_B,
        page_table=block_tables_BN,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (-1, -1),
    )
    return o_B1HK[:, 0]


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
    if len(q_THK) == 0:
        return q_THK.new_empty(q_THK.shape)
    starts, extent = (query_starts_B1, key_starts_B1), (max_query_len, max_key_len)
    return flash_attn_varlen_func(q_THK, k_SHK, v_SHK, *starts, *extent, softmax_scale=scale, causal=causal)
