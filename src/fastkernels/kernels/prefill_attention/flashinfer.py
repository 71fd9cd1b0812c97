"""prefill_attention by FlashInfer: its FA3 kernel on Hopper, FA2 elsewhere."""

from __future__ import annotations

import torch
from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.kv_cache.pages import Planners, page_list, static, workspace
from fastkernels.kernels.plans import is_planned, on_host, planned

HEAD_DIMS = (64, 128, 256)
_planners = Planners(lambda device: BatchPrefillWithPagedKVCacheWrapper(workspace(device)))


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
    if reason := limits.no_sinks(sinks_H) or limits.library(q_THK, k_cache, v_cache, HEAD_DIMS):
        return reason
    lengths = (query_starts_B1, seq_lens_B, block_tables_BN)
    if is_planned("flashinfer prefill", lengths, static(q_THK, k_cache, scale, window)):
        return None
    return limits.reads_lengths_on_the_host(q_THK)


def _plan(
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    scale: float,
    window: int,
) -> BatchPrefillWithPagedKVCacheWrapper:
    pages = page_list(seq_lens_B, block_tables_BN, block_size)
    starts_B1 = on_host(query_starts_B1)
    return _planners.take(device).plan(
        starts_B1 - starts_B1[0], pages.starts_B1, pages.ids, pages.last_lens_B, num_heads, num_kv_heads,
        head_dim, block_size, causal=True, window_left=window - 1 if window else -1, q_data_type=dtype,
        kv_data_type=dtype, sm_scale=scale, seq_lens=pages.seq_lens_B,
    )  # fmt: skip


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
    lengths, fixed = (query_starts_B1, seq_lens_B, block_tables_BN), static(q_THK, k_cache, scale, window)
    wrapper = planned("flashinfer prefill", lengths, fixed, lambda: _plan(*lengths, *fixed))
    return wrapper.run(q_THK, (k_cache, v_cache), out=q_THK.new_empty(q_THK.shape))
