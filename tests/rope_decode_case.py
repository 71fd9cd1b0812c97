"""Calls of rope_decode_attention over poisoned caches, and what its parts make of them in float64.

B rows · H query heads · J key/value heads · K head dim · R rotated dims
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.kernels import rotary_table
from tests.attention_case import ROUNDING, attention_case

CACHES = (5, 6)  # of the arguments
DROPPED = 7  # block 0 is the null block: padding writes there


def make(
    seq_lens: Sequence[int],
    dtype: torch.dtype,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    rotated: int = 16,
    window: int | None = None,
    block_size: int = 16,
    device: str = "cpu",
    seed: int = 0,
) -> tuple:
    """q, k and v are views of one packed product; every row's last slot is NaN, as what it must not use."""
    shape = {"heads": heads, "head_dim": head_dim, "window": window, "block_size": block_size}
    case = attention_case([1] * len(seq_lens), list(seq_lens), dtype=dtype, seed=seed, **shape)
    generator = torch.Generator().manual_seed(seed + 1)
    (h, j), k, batch = heads, head_dim, len(seq_lens)
    packed = torch.randn(batch, (h + 2 * j) * k, generator=generator).to(dtype)
    query, key, value = packed.to(device).split([h * k, j * k, j * k], dim=-1)
    positions_B = (case.seq_lens_B.long() - 1).clamp(min=0)
    blocks_B = case.block_tables_BN[torch.arange(batch), positions_B // block_size].long()
    slots_B = torch.where(case.seq_lens_B > 0, blocks_B * block_size + positions_B % block_size, 0)
    for cache in (case.k_cache, case.v_cache):
        cache.flatten(0, 1)[slots_B] = torch.nan
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rope = {"rope_theta": 100.0, "partial_rotary_factor": rotated / k}
    table_MR = rotary_table(k, max(seq_lens) + 1, rope, wide, torch.device("cpu"))
    rows = query.view(batch, h, k), key.view(batch, j, k), value.view(batch, j, k)
    tensors = (
        positions_B,
        table_MR,
        case.k_cache,
        case.v_cache,
        slots_B,
        case.seq_lens_B,
        case.block_tables_BN,
    )
    longest = max(max(seq_lens), 1)
    return (*rows, *(x.to(device) for x in tensors), case.scale, case.window, longest)


def copied(args: Sequence) -> tuple:
    """The arguments with caches of their own."""
    return tuple(x.clone() if i in CACHES else x for i, x in enumerate(args))


def check(args: Sequence, impl: str, units: float = 1.0) -> None:
    """Outputs, new keys and new values are right within `units` times the dtype's rounding; nothing else in
    the caches has changed."""
    mine = copied(args)
    o_BHK = kernels.rope_decode_attention(*mine, impl=impl)
    exact = [x.cpu().double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]
    exact = [x.cpu() if isinstance(x, Tensor) else x for x in exact]
    wanted_BHK = kernels.rope_decode_attention(*exact, impl="reference")
    limit = units * ROUNDING[o_BHK.dtype]
    assert o_BHK.shape == wanted_BHK.shape
    assert o_BHK.dtype == args[0].dtype
    assert o_BHK.is_contiguous()
    difference = (o_BHK.cpu().double() - wanted_BHK).flatten(1).norm(dim=1)
    size = wanted_BHK.flatten(1).norm(dim=1)
    worst = (difference / torch.where(size > 0, size, 1.0)).max().item()
    assert worst <= limit, f"error {worst:.3g} above {limit:.3g}"
    for at in CACHES:
        found, right = mine[at][1:].cpu().double(), exact[at][1:]
        torch.testing.assert_close(found, right, rtol=limit, atol=limit, equal_nan=True)
