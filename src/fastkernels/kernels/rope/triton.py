"""rope in Triton: one launch rotates queries and keys, a few heads of one token for each program.

T tokens · H query heads · J key heads · K head dim · R rotated dims
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import TILE_ELEMENTS, ceil_div, power_of_two, warps


def unsupported(
    kernel: str, positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor
) -> str | None:
    if q_THK.stride(-1) != 1 or k_TJK.stride(-1) != 1 or cos_sin_PR.stride(-1) != 1:
        return "needs a contiguous last dimension"
    return checks.not_float32_compute(cos_sin_PR) or checks.not_float32_compute(q_THK, k_TJK)


class Tiles(NamedTuple):
    """What one program takes: `heads` heads of a token, their halves and what is not rotated in powers of
    two."""

    heads: int
    half: int
    rest: int

    @classmethod
    def of(cls, q_heads: int, k_heads: int, head_dim: int, rotated: int) -> Tiles:
        half = power_of_two(rotated // 2)
        rest = power_of_two(head_dim - rotated) if head_dim > rotated else 0
        # No more heads than the keys have (or the queries, if fewer), so that no tile is mostly masked.
        heads = min(power_of_two(min(q_heads, k_heads)), max(1, TILE_ELEMENTS // (2 * half)))
        return cls(heads, half, rest)


@triton.jit
def rotate_heads(x, out, cos_sin, head, heads,
                 K: tl.constexpr, R: tl.constexpr, stride_h, out_stride_h,
                 HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr):  # fmt: skip
    h = head + tl.arange(0, HEADS)
    d = tl.arange(0, HALF)
    mask = (h < heads)[:, None] & (d < R // 2)[None, :]
    # Every head reads the row for itself, from L1: read once, it would cross shared memory behind a barrier.
    table = tl.broadcast_to((cos_sin + d)[None, :], [HEADS, HALF])
    cos = tl.load(table, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(table + R // 2, mask=mask, other=0.0).to(tl.float32)
    read = x + h[:, None] * stride_h + d[None, :]
    write = out + h[:, None] * out_stride_h + d[None, :]
    first = tl.load(read, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(read + R // 2, mask=mask, other=0.0).to(tl.float32)
    tl.store(write, (first * cos - second * sin).to(out.dtype.element_ty), mask=mask)
    tl.store(write + R // 2, (second * cos + first * sin).to(out.dtype.element_ty), mask=mask)
    if REST > 0:
        r = R + tl.arange(0, REST)
        keep = (h < heads)[:, None] & (r < K)[None, :]
        value = tl.load(x + h[:, None] * stride_h + r[None, :], mask=keep)
        tl.store(out + h[:, None] * out_stride_h + r[None, :], value, mask=keep)


@triton.jit
def _rope(positions, q, k, cos_sin, q_out, k_out,
          position_stride, q_stride_t, q_stride_h, k_stride_t, k_stride_h, table_stride,
          H: tl.constexpr, J: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
          HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr):  # fmt: skip
    Q_TILES: tl.constexpr = (H + HEADS - 1) // HEADS
    TILES: tl.constexpr = Q_TILES + (J + HEADS - 1) // HEADS
    t = (tl.program_id(0) // TILES).to(tl.int64)
    tile = tl.program_id(0) % TILES
    row = cos_sin + tl.load(positions + t * position_stride).to(tl.int64) * table_stride
    if tile < Q_TILES:
        rotate_heads(q + t * q_stride_t, q_out + t * (H * K), row, tile * HEADS, H,
                     K, R, q_stride_h, K, HEADS, HALF, REST)  # fmt: skip
    else:
        rotate_heads(k + t * k_stride_t, k_out + t * (J * K), row, (tile - Q_TILES) * HEADS, J,
                     K, R, k_stride_h, K, HEADS, HALF, REST)  # fmt: skip


def rope(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> tuple[Tensor, Tensor]:
    tokens, q_heads, head_dim = q_THK.shape
    k_heads, rotated = k_TJK.shape[1], cos_sin_PR.shape[-1]
    q_out, k_out = q_THK.new_empty(q_THK.shape), k_TJK.new_empty(k_TJK.shape)
    if tokens == 0:
        return q_out, k_out
    tile = Tiles.of(q_heads, k_heads, head_dim, rotated)
    tiles = ceil_div(q_heads, tile.heads) + ceil_div(k_heads, tile.heads)
    _rope[(tokens * tiles,)](
        positions_T, q_THK, k_TJK, cos_sin_PR, q_out, k_out,
        positions_T.stride(0), *q_THK.stride()[:2], *k_TJK.stride()[:2], cos_sin_PR.stride(0),
        H=q_heads, J=k_heads, K=head_dim, R=rotated,
        HEADS=tile.heads, HALF=tile.half, REST=tile.rest, **warps(2 * tile.heads * tile.half),
    )  # fmt: skip
    return q_out, k_out
