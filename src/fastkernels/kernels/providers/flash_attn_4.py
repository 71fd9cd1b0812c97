"""Attention by FlashAttention-4, written in CuTe DSL, over a paged cache and of packed rows.

Each variant is compiled at its first call. On Hopper it has no split of long rows.
"""

from __future__ import annotations

from typing import Any

from flash_attn.cute import flash_attn_varlen_func  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.providers import flash_attention

DIVISOR = 16  # of head dimensions in a paged cache


def unsupported(kernel: str, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    reason = flash_attention.unsupported(kernel, q, k, v, *rest, divisor=DIVISOR)
    sinks = flash_attention.sinks(kernel, rest)
    return reason or (None if sinks is None else checks.not_float32_compute(sinks))


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
    return flash_attn_varlen_func(
        q_THK,
        k_cache,
        v_cache,
        cu_seqlens_q=flash_attention.from_zero(query_starts_B1),
        seqused_k=seq_lens_B,
        page_table=block_tables_BN,
        max_seqlen_q=max_query_len,
        max_seqlen_k=max_seq_len,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (None, None),
        learnable_sink=sinks_H,
    )[0]


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
    o_B1HK, _ = flash_attn_varlen_func(
        q_BHK[:, None],
        k_cache,
        v_cache,
        seqused_k=seq_lens_B,
        page_table=block_tables_BN,
        max_seqlen_k=max_seq_len,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (None, None),
        learnable_sink=sinks_H,
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
    )[0]
