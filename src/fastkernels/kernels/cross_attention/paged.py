"""cross_attention of single queries by decode_attention: a pool row is a run of blocks of a paged cache.

Its kernels split the keys of a row over programs, which a few rows of 1,500 keys need.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.decode_attention import decode_attention
from fastkernels.kernels.plans import planned

# The block size of the engine's own caches, which decode kernels are written for; S may need a smaller one.
LARGEST_BLOCK = 16
SMALLEST_BLOCK = 4


def block_size(keys: int) -> int:
    """The largest power of two up to LARGEST_BLOCK that divides the keys of a row."""
    return min(LARGEST_BLOCK, keys & -keys)


def unsupported(
    kernel: str,
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
) -> str | None:
    if max_query_len != 1 or q_THK.shape[0] != len(rows_B):
        return "serves one query a row"
    if block_size(k_RSHK.shape[1]) < SMALLEST_BLOCK:
        return f"needs keys in blocks of {SMALLEST_BLOCK} or more, not {k_RSHK.shape[1]} keys"
    return checks.not_alike(q_THK, k_RSHK, v_RSHK)


def cross_attention(
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    keys = k_RSHK.shape[1]
    size = block_size(keys)
    k_NPHK, v_NPHK = (pool.view(-1, size, *pool.shape[2:]) for pool in (k_RSHK, v_RSHK))
    lens_B, tables_BM = _tables(rows_B, keys, size)
    return decode_attention(q_THK, k_NPHK, v_NPHK, lens_B, tables_BM, scale, None, keys)


def _tables(rows_B: Tensor, keys: int, size: int) -> tuple[Tensor, Tensor]:
    """Lengths [B] and block tables [B, keys / size], int32, made once for all layers of a forward."""

    def make() -> tuple[Tensor, Tensor]:
        blocks = keys // size
        within_M = torch.arange(blocks, device=rows_B.device)
        tables_BM = (rows_B[:, None] * blocks + within_M).int()
        return torch.full_like(tables_BM[:, 0], keys).contiguous(), tables_BM

    # A forward that is captured makes them inside its graph, once for all layers.
    return planned("cross_attention.tables", (rows_B,), (keys, size), make)
