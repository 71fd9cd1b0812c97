"""rope_decode_attention as two kernels, each the choice for this device."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.decode_attention import decode_attention
from fastkernels.kernels.rope_store_kv import rope_store_kv


def rope_decode_attention(
    q_BHK: Tensor,
    k_BJK: Tensor,
    v_BJK: Tensor,
    positions_B: Tensor,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_B: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
) -> Tensor:
    q_BHK = rope_store_kv(positions_B, q_BHK, k_BJK, v_BJK, cos_sin_MR, k_cache, v_cache, slots_B)
    return decode_attention(q_BHK, k_cache, v_cache, seq_lens_B, block_tables_BN, scale, window, max_seq_len)
