"""hash_encoding in Triton: a program for some points and one level, so that a level's rows stay in the cache.

The eight corners are unrolled. A level's numbers are read from two small tensors that lie on the device.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.hash_encoding import PRIMES

BLOCK = 128  # points
_SECOND, _THIRD = (prime - (prime >> 31 << 32) for prime in PRIMES)  # as int32, which wraps as uint32 does


def unsupported(kernel: str, *args: Any) -> str | None:
    x_M3, table_EF = args[:2]
    if x_M3.dtype != torch.float32:
        return f"takes points in float32, not {x_M3.dtype}"
    if table_EF.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"takes tables of up to 32 bits, not {table_EF.dtype}"
    if table_EF.shape[1] & table_EF.shape[1] - 1:
        return f"takes a power of two of features, not {table_EF.shape[1]}"
    if not x_M3.is_contiguous() or not table_EF.is_contiguous():
        return "needs contiguous tensors"
    return None


@lru_cache
def _levels(
    scales: tuple[float, ...], resolutions: tuple[int, ...], offsets: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """(scales [L], side, first row and number of rows of each int32 [L, 3])"""
    rows = [(side, first, end - first) for side, first, end in zip(resolutions, offsets[:-1], offsets[1:])]
    return torch.tensor(scales, device=device), torch.tensor(rows, dtype=torch.int32, device=device)


@triton.jit(do_not_specialize=["points"])
def _encode(x, table, scales, levels, out, points, LEVELS: tl.constexpr, FEATURES: tl.constexpr,
            SECOND: tl.constexpr, THIRD: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    level = tl.program_id(1)
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = point < points
    scale = tl.load(scales + level)
    side, first = tl.load(levels + 3 * level), tl.load(levels + 3 * level + 1)
    rows = tl.load(levels + 3 * level + 2)
    px = tl.load(x + 3 * point, mask=is_there, other=0.0) * scale + 0.5
    py = tl.load(x + 3 * point + 1, mask=is_there, other=0.0) * scale + 0.5
    pz = tl.load(x + 3 * point + 2, mask=is_there, other=0.0) * scale + 0.5
    gx, gy, gz = tl.floor(px), tl.floor(py), tl.floor(pz)
    wx, wy, wz = px - gx, py - gy, pz - gz
    nx, ny, nz = gx.to(tl.int32), gy.to(tl.int32), gz.to(tl.int32)
    is_counted = side.to(tl.int64) * side * side <= rows
    feature = tl.arange(0, FEATURES)
    found = tl.zeros([BLOCK, FEATURES], tl.float32)
    for corner in tl.static_range(8):
        x_after, y_after, z_after = corner // 4, corner // 2 % 2, corner % 2
        cx, cy, cz = nx + x_after, ny + y_after, nz + z_after
        counted = cx + side * (cy + side * cz)
        hashed = cx ^ (cy * SECOND) ^ (cz * THIRD)
        place = tl.where(is_counted, counted, hashed).to(tl.uint32, bitcast=True) % rows.to(tl.uint32)
        weight = wx if x_after else 1.0 - wx
        weight = weight * (wy if y_after else 1.0 - wy)
        weight = weight * (wz if z_after else 1.0 - wz)
        row = (first + place.to(tl.int32)).to(tl.int64)
        value = tl.load(table + row[:, None] * FEATURES + feature[None, :], mask=is_there[:, None], other=0.0)
        found += weight[:, None] * value.to(tl.float32)
    target = out + (point[:, None] * LEVELS + level) * FEATURES + feature[None, :]
    tl.store(target, found.to(out.dtype.element_ty), mask=is_there[:, None])


def hash_encoding(
    x_M3: Tensor,
    table_EF: Tensor,
    scales: Sequence[float],
    resolutions: Sequence[int],
    offsets: Sequence[int],
) -> Tensor:
    points, levels, features = len(x_M3), len(scales), table_EF.shape[1]
    out_MD = table_EF.new_empty(points, levels * features)
    if not points:
        return out_MD
    scale_L, level_L3 = _levels(tuple(scales), tuple(resolutions), tuple(offsets), x_M3.device)
    _encode[(triton.cdiv(points, BLOCK), levels)](
        x_M3, table_EF, scale_L, level_L3, out_MD, points, LEVELS=levels, FEATURES=features, SECOND=_SECOND,
        THIRD=_THIRD, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out_MD
