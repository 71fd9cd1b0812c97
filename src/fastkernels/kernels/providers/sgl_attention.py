"""Attention by SGLang's build of FlashAttention-3: over a paged cache, with sinks, and of packed rows."""

from __future__ import annotations

from typing import Any

import torch
from sgl_kernel.flash_attn import (  # pyright: ignore[reportMissingImports]
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from torch import Tensor

from fastkernels.kernels.providers import flash_attention


def unsupported(kernel: str, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    if reason := flash_attention.unsupported(kernel, q, k, v, *rest):
        return reason
    sinks_H = flash_attention.sinks(kernel, rest)
    if sinks_H is not None and not q.dtype == sinks_H.dtype == torch.bfloat16:
        return "serves sinks where they and the queries are bfloat16"
    return None


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
    queries = {"cu_seqlens_q": flash_attention.from_zero(query_starts_B1), "max_seqlen_q": max_query_len}
    keys = {"cache_seqlens": seq_lens_B, "page_table": block_tables_BN}
    return _attend(q_THK, k_cache, v_cache, scale, window, sinks_H, **queries, **keys)


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
    keys = {"cache_seqlens": seq_lens_B, "page_table": block_tables_BN}
    return _attend(q_BHK[:, None], k_cache, v_cache, scale, window, sinks_H, **keys)[:, 0]


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    scale: float,
    window: int,
    sinks_H: Tensor | None,
    **lengths: Any,
) -> Tensor:
    if not len(q):
        return q.new_empty(q.shape)
    return flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (-1, -1),
        sinks=sinks_H,
        **lengths,
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
    causal: bool,
    bias_HQS: Tensor | None,
) -> Tensor:
    if not len(q_THK):
        return q_THK.new_empty(q_THK.shape)
    starts, extent = (query_starts_B1, key_starts_B1), (max_query_len, max_key_len)
    return flash_attn_varlen_func(q_THK, k_SHK, v_SHK, *starts, *extent, softmax_scale=scale, causal=causal)
