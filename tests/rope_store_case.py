"""Calls of rope_store_kv, and what rope and then store_kv make of them.

T tokens · H query heads · J key/value heads · K head dim · R rotated dims
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.kernels import rotary_table

BLOCK_SIZE = 4
POSITIONS = 40


def make(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    device: str = "cpu",
    block_size: int = BLOCK_SIZE,
) -> tuple[Tensor, ...]:
    """Arguments for (T, H, J, K, R): q, k and v are views of one packed product, the caches are NaN, the
    slots distinct and behind block 0."""
    t, h, j, k, r = shape
    generator = torch.Generator().manual_seed(3)
    positions_T = torch.randint(0, POSITIONS, (t,), generator=generator).to(device)
    packed = torch.randn(t, (h + 2 * j) * k, generator=generator, dtype=torch.float64).to(device, dtype)
    query, key, value = packed.split([h * k, j * k, j * k], dim=-1)
    blocks = -(-t // block_size) + 4
    k_cache, v_cache = (
        torch.full((blocks, block_size, j, k), torch.nan, dtype=dtype, device=device) for _ in "kv"
    )
    slots_T = torch.randperm((blocks - 1) * block_size, generator=generator)[:t].to(device) + block_size
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    table_PR = rotary_table(k, POSITIONS, {"rope_theta": 100.0, "partial_rotary_factor": r / k}, wide, device)
    heads = query.view(t, h, k), key.view(t, j, k), value.view(t, j, k)
    return positions_T, *heads, table_PR, k_cache, v_cache, slots_T


def copied(args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The arguments with caches of their own."""
    return (*args[:5], args[5].clone(), args[6].clone(), args[7])


def expected(args: Sequence[Tensor], impl: str | None) -> tuple[Tensor, Tensor, Tensor]:
    """The query and both caches after `rope` and `store_kv` by this implementation."""
    positions_T, q_THK, k_TJK, v_TJK, table_PR, k_cache, v_cache, slots_T = copied(args)
    q_THK, k_TJK = kernels.rope(positions_T, q_THK, k_TJK, table_PR, impl=impl)
    kernels.store_kv(k_TJK, v_TJK, k_cache, v_cache, slots_T, impl=impl)
    return q_THK, k_cache, v_cache


def same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Bit for bit; NaN is NaN."""
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
