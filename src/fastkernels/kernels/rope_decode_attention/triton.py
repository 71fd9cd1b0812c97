"""rope_decode_attention in Triton: one launch, whose programs rotate the queries that they attend with. The
first split of a row and head rotates its new key, begins with it and leaves it in the cache."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.decode_attention.triton import New, launch
from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.rope_store_kv import triton as rope_store_kv


def unsupported(
    kernel: str,
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
) -> str | None:
    stored = positions_B, q_BHK, k_BJK, v_BJK, cos_sin_MR, k_cache, v_cache, slots_B
    return rope_store_kv.unsupported(kernel, *stored) or limits.triton(q_BHK, k_cache, v_cache)


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
    new = New(k_BJK, v_BJK, positions_B, cos_sin_MR, slots_B)
    return launch(q_BHK, k_cache, v_cache, seq_lens_B, block_tables_BN, scale, window, max_seq_len, new)
