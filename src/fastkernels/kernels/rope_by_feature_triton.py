"""rope_by_feature in Triton: one launch serves queries and keys, a few heads of one token for each program.

T tokens · H heads · K head dim. A program reads whole pairs, neighbours in memory, and swaps them in
registers.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import TILE_ELEMENTS, ceil_div, power_of_two, warps


def unsupported(
    kernel: str, positions_T: Tensor, q_THK: Tensor, k_THK: Tensor, cos_sin_P2K: Tensor
) -> str | None:
    if any(x.stride(-1) != 1 for x in (q_THK, k_THK, cos_sin_P2K)):
        return "needs a contiguous last dimension"
    return checks.not_float32_compute(cos_sin_P2K) or checks.not_float32_compute(q_THK, k_THK)


@triton.jit
def _turn(x, out, row, head, stride_h, H: tl.constexpr, K: tl.constexpr, HEADS: tl.constexpr,
          WIDTH: tl.constexpr):  # fmt: skip
    h = head + tl.arange(0, HEADS)
    d = tl.arange(0, WIDTH)
    mask = (h < H)[:, None] & (d < K)[None, :]
    # Every head reads the row for itself, from L1: read once, it would cross shared memory behind a barrier.
    angle = tl.broadcast_to((row + d)[None, :], [HEADS, WIDTH])
    cos = tl.load(angle, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(angle + K, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + h[:, None] * stride_h + d[None, :], mask=mask, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(value, [HEADS, WIDTH // 2, 2]))
    partner = tl.reshape(tl.join(-odd, even), [HEADS, WIDTH])
    result = (value * cos + partner * sin).to(out.dtype.element_ty)
    tl.store(out + h[:, None] * K + d[None, :], result, mask=mask)


@triton.jit
def _turn_both(positions, q, k, cos_sin, q_out, k_out, position_stride, q_stride_t, q_stride_h,
               k_stride_t, k_stride_h, table_stride, H: tl.constexpr, K: tl.constexpr,
               HEADS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    TILES: tl.constexpr = (H + HEADS - 1) // HEADS
    tile = tl.program_id(0) % (2 * TILES)
    t = (tl.program_id(0) // (2 * TILES)).to(tl.int64)
    row = cos_sin + tl.load(positions + t * position_stride).to(tl.int64) * table_stride
    if tile < TILES:
        _turn(q + t * q_stride_t, q_out + t * (H * K), row, tile * HEADS, q_stride_h, H, K, HEADS, WIDTH)
    else:
        _turn(k + t * k_stride_t, k_out + t * (H * K), row, (tile - TILES) * HEADS, k_stride_h,
              H, K, HEADS, WIDTH)  # fmt: skip


def rope_by_feature(
    positions_T: Tensor, q_THK: Tensor, k_THK: Tensor, cos_sin_P2K: Tensor
) -> tuple[Tensor, Tensor]:
    tokens, num_heads, head_dim = q_THK.shape
    q_out, k_out = q_THK.new_empty(q_THK.shape), k_THK.new_empty(k_THK.shape)
    if tokens == 0:
        return q_out, k_out
    width = power_of_two(head_dim)
    heads = min(power_of_two(num_heads), max(1, TILE_ELEMENTS // width))
    _turn_both[(tokens * 2 * ceil_div(num_heads, heads),)](
        positions_T, q_THK, k_THK, cos_sin_P2K, q_out, k_out,
        positions_T.stride(0), *q_THK.stride()[:2], *k_THK.stride()[:2], cos_sin_P2K.stride(0),
        H=num_heads, K=head_dim, HEADS=heads, WIDTH=width, **warps(heads * width),
    )  # fmt: skip
    return q_out, k_out
