"""decode_attention in plain PyTorch: gather the visible keys of all rows, one batched product each way.

The softmax and both products run in at least float32 (float64 inputs stay float64).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels.kv_cache.gather import KeyRows, gather, key_rows, softmax
from fastkernels.kernels.plans import planned

# Elements of keys gathered at a time: 256 MiB in float64, and far above a CPU engine's whole batch.
MAX_GATHERED = 2**25


class DecodePlan(NamedTuple):
    keys: KeyRows
    bias_BS: Tensor  # 0 for visible keys, -inf for padding
    empty_B: Tensor | None  # rows without keys; None if there are none


def plan(
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    window: int,
    width: int,
    block_size: int,
    num_heads: int,
    dtype: torch.dtype,
) -> DecodePlan:
    """Indices and masks of a step, the same for every layer."""
    first_B = (seq_lens_B - window).clamp(min=0) if window else torch.zeros_like(seq_lens_B)
    keys = key_rows(block_tables_BN, seq_lens_B, first_B, width, block_size, num_heads)
    empty_B = seq_lens_B == 0
    hidden_BS = (keys.position_BS >= seq_lens_B[:, None]) & ~empty_B[:, None]
    bias_BS = torch.zeros(hidden_BS.shape, dtype=dtype, device=hidden_BS.device).masked_fill_(
        hidden_BS, -torch.inf
    )
    # Looking costs a synchronisation on a GPU, and a CUDA graph may meet empty rows in its next replay.
    if not empty_B.is_cuda and not empty_B.any():
        return DecodePlan(keys, bias_BS, None)
    return DecodePlan(keys, bias_BS, empty_B)


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
    batch, _, head_dim = q_BHK.shape
    _, block_size, num_heads, _ = k_cache.shape
    width = min(max_seq_len, block_tables_BN.shape[1] * block_size, window or max_seq_len)
    if width == 0:
        return torch.zeros_like(q_BHK)
    at_once = max(1, MAX_GATHERED // (num_heads * width * head_dim))
    if batch > at_once:
        parts = [
            decode_attention(
                q_BHK[rows],
                k_cache,
                v_cache,
                seq_lens_B[rows],
                block_tables_BN[rows],
                scale,
                window,
                width,
                sinks_H,
            )
            for rows in (slice(i, i + at_once) for i in range(0, batch, at_once))
        ]
        return torch.cat(parts)

    dtype = torch.promote_types(q_BHK.dtype, torch.float32)
    keys, bias_BS, empty_B = planned(
        "decode_attention", (seq_lens_B, block_tables_BN), (window, width, block_size, num_heads, dtype),
        lambda: plan(seq_lens_B, block_tables_BN, window, width, block_size, num_heads, dtype),
    )  # fmt: skip
    # The queries that share a key/value head are the rows of one product.
    q_BJGK = (q_BHK.to(dtype) * scale).reshape(batch, num_heads, -1, head_dim)
    k_BJSK, v_BJSK = gather(k_cache, keys, dtype), gather(v_cache, keys, dtype)
    scores_BJGS = (q_BJGK @ k_BJSK.mT).add_(bias_BS[:, None, None, :])
    sinks_JG = None if sinks_H is None else sinks_H.view(num_heads, -1)
    o_BHK = (softmax(scores_BJGS, sinks_JG) @ v_BJSK).view(q_BHK.shape).to(q_BHK.dtype)
    return o_BHK if empty_B is None else o_BHK.masked_fill_(empty_B[:, None, None], 0)
