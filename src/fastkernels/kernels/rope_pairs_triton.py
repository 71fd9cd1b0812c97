"""rope_pairs in Triton: one launch rotates queries and keys, a few heads of one token for each program.

B requests · S tokens of each · H heads · K head dim. A program reads whole pairs, neighbours in memory, and
takes them apart in registers.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import TILE_ELEMENTS, ceil_div, power_of_two, warps


def unsupported(kernel: str, q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> str | None:
    if any(x.stride(-1) != 1 for x in (q_BSHK, k_BSHK, cos_sin_SK)):
        return "needs a contiguous last dimension"
    return checks.not_float32_compute(cos_sin_SK) or checks.not_float32_compute(q_BSHK, k_BSHK)


@triton.jit
def _rotate(x, out, row, head, stride_h, H: tl.constexpr, K: tl.constexpr, HEADS: tl.constexpr,
            WIDTH: tl.constexpr):  # fmt: skip
    h = head + tl.arange(0, HEADS)
    d = tl.arange(0, WIDTH)
    j = tl.arange(0, WIDTH // 2)
    mask = (h < H)[:, None] & (d < K)[None, :]
    # Every head reads the row for itself, from L1: read once, it would cross shared memory behind a barrier.
    angle = tl.broadcast_to((row + j)[None, :], [HEADS, WIDTH // 2])
    held = (h < H)[:, None] & (j < K // 2)[None, :]
    cos = tl.load(angle, mask=held, other=0.0).to(tl.float32)
    sin = tl.load(angle + K // 2, mask=held, other=0.0).to(tl.float32)
    value = tl.load(x + h[:, None] * stride_h + d[None, :], mask=mask, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(value, [HEADS, WIDTH // 2, 2]))
    turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    result = tl.reshape(turned, [HEADS, WIDTH]).to(out.dtype.element_ty)
    tl.store(out + h[:, None] * K + d[None, :], result, mask=mask)


@triton.jit
def _rotate_pairs(q, k, cos_sin, q_out, k_out, length, q_stride_b, q_stride_s, q_stride_h,
                  k_stride_b, k_stride_s, k_stride_h, table_stride, H: tl.constexpr, K: tl.constexpr,
                  HEADS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    TILES: tl.constexpr = (H + HEADS - 1) // HEADS
    tile = tl.program_id(0) % (2 * TILES)
    t = (tl.program_id(0) // (2 * TILES)).to(tl.int64)
    b, s = t // length, t % length
    row = cos_sin + s * table_stride
    if tile < TILES:
        _rotate(q + b * q_stride_b + s * q_stride_s, q_out + t * (H * K), row, tile * HEADS, q_stride_h,
                H, K, HEADS, WIDTH)  # fmt: skip
    else:
        _rotate(k + b * k_stride_b + s * k_stride_s, k_out + t * (H * K), row, (tile - TILES) * HEADS,
                k_stride_h, H, K, HEADS, WIDTH)  # fmt: skip


def rope_pairs(q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> tuple[Tensor, Tensor]:
    requests, length, num_heads, head_dim = q_BSHK.shape
    q_out, k_out = q_BSHK.new_empty(q_BSHK.shape), k_BSHK.new_empty(k_BSHK.shape)
    if q_out.numel() == 0:
        return q_out, k_out
    width = power_of_two(head_dim)
    heads = min(power_of_two(num_heads), max(1, TILE_ELEMENTS // width))
    _rotate_pairs[(requests * length * 2 * ceil_div(num_heads, heads),)](
        q_BSHK, k_BSHK, cos_sin_SK, q_out, k_out, length,
        *q_BSHK.stride()[:3], *k_BSHK.stride()[:3], cos_sin_SK.stride(0),
        H=num_heads, K=head_dim, HEADS=heads, WIDTH=width, **warps(heads * width),
    )  # fmt: skip
    return q_out, k_out
