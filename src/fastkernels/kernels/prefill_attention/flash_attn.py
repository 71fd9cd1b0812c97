"""prefill_attention by flash-attn's varlen kernel over a paged cache."""

from __future__ import annotations

import torch
from flash_attn import flash_attn_varlen_func  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.plans import planned


def unsupported(
    kernel: str,
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
) -> str | None:
    return limits.no_sinks(sinks_H) or limits.flash_attn(q_THK, k_cache, v_cache)


def _starts(query_starts_B1: Tensor, seq_lens_B: Tensor) -> tuple[Tensor, Tensor]:
    """First query and first key of each row, counted from the first row's."""
    key_starts_B1 = torch.zeros_like(query_starts_B1)
    torch.cumsum(seq_lens_B, 0, out=key_starts_B1[1:])
    return query_starts_B1 - query_starts_B1[0], key_starts_B1


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
    lengths = (query_starts_B1, seq_lens_B)
    starts_B1, key_starts_B1 = planned("flash_attn", lengths, (), lambda: _starts(*lengths))
    return flash_attn_varlen_func(
        q_THK,
        k_cache,
        v_cache,
        cu_seqlens_q=starts_B1,
        cu_seqlens_k=key_starts_B1,
        max_seqlen_q=max_query_len,
        max_seqlen_k=max_seq_len,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (-1, -1),
        block_table=block_tables_BN,
    )
