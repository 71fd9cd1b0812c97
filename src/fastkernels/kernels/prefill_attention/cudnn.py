"""prefill_attention by cuDNN through torch's SDPA, for a batch of equally long prompts without earlier
tokens.

The dense kernel wants K and V as one block: they are copied out of their pages first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.plans import planned_on_device

MAX_HEAD_DIM = 128


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
    if reason := limits.no_sinks(sinks_H):
        return reason
    if q_THK.shape[-1] > MAX_HEAD_DIM or q_THK.shape[-1] % 8:
        return f"serves head dimensions up to {MAX_HEAD_DIM} that 8 divides, not {q_THK.shape[-1]}"
    # Decided without a look at the device: T tokens in B rows of at most T / B each are T / B tokens in every
    # row.
    if max_query_len != max_seq_len or q_THK.shape[0] != len(seq_lens_B) * max_query_len:
        return "needs rows of one length, all of it queries"
    if window and window < max_seq_len:
        return "has no sliding window"
    if torch.cuda.get_device_capability(q_THK.device) < (8, 0):
        return "needs compute capability 8.0"
    return limits.half(q_THK, k_cache, v_cache)


def _slots(block_tables_BN: Tensor, seq_len: int, block_size: int) -> Tensor:
    """int64 [B * L]: the cache slot of every token of every row."""
    position_L = torch.arange(seq_len, device=block_tables_BN.device)
    block_BL = block_tables_BN[:, position_L // block_size].long()
    return (block_BL * block_size + position_L % block_size).flatten()


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
    rows, (_, block_size, num_kv_heads, head_dim) = len(seq_lens_B), k_cache.shape
    slots = planned_on_device("cudnn", (block_tables_BN,), (max_seq_len, block_size),
                              lambda: _slots(block_tables_BN, max_seq_len, block_size))  # fmt: skip

    def dense(cache: Tensor) -> Tensor:
        kept = cache.view(-1, num_kv_heads, head_dim).index_select(0, slots)
        return kept.view(rows, max_seq_len, num_kv_heads, head_dim).transpose(1, 2)

    q_BHLK = q_THK.view(rows, max_seq_len, -1, head_dim).transpose(1, 2)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        o_BHLK = F.scaled_dot_product_attention(
            q_BHLK, dense(k_cache), dense(v_cache), is_causal=True, scale=scale, enable_gqa=True
        )
    return o_BHLK.transpose(1, 2).reshape(q_THK.shape)
