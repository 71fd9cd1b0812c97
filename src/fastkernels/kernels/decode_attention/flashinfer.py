"""decode_attention by FlashInfer, on tensor cores: a decode step is a prefill of one query for each row."""

from __future__ import annotations

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.kv_cache.pages import Planners, page_list, static, workspace
from fastkernels.kernels.plans import is_planned, planned

HEAD_DIMS = (64, 128, 256)
_planners = Planners(
    lambda device: BatchDecodeWithPagedKVCacheWrapper(workspace(device), use_tensor_cores=True)
)


def unsupported(
    kernel: str,
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> str | None:
    if reason := limits.no_sinks(sinks_H) or limits.library(q_BHK, k_cache, v_cache, HEAD_DIMS):
        return reason
    if is_planned("flashinfer decode", (seq_lens_B, block_tables_BN), static(q_BHK, k_cache, scale, window)):
        return None
    return limits.reads_lengths_on_the_host(q_BHK)


def _plan(
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
) -> BatchDecodeWithPagedKVCacheWrapper:
    pages = page_list(seq_lens_B, block_tables_BN, block_size)
    return _planners.take(device).plan(
        pages.starts_B1, pages.ids, pages.last_lens_B, num_heads, num_kv_heads, head_dim, block_size,
        window_left=window - 1 if window else -1, q_data_type=dtype, kv_data_type=dtype, sm_scale=scale,
        seq_lens=pages.seq_lens_B,
    )  # fmt: skip


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
    lengths, fixed = (seq_lens_B, block_tables_BN), static(q_BHK, k_cache, scale, window)
    wrapper = planned("flashinfer decode", lengths, fixed, lambda: _plan(*lengths, *fixed))
    return wrapper.run(q_BHK, (k_cache, v_cache), out=q_BHK.new_empty(q_BHK.shape))
