"""rope_store_kv in Triton: one launch, in which a program rotates or copies a few heads of one token.

T tokens · H query heads · J key/value heads · K head dim · R rotated dims · P block size
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, warps
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.rope.triton import Tiles, rotate_heads


def unsupported(
    kernel: str,
    positions_T: Tensor,
    q_THK: Tensor,
    k_TJK: Tensor,
    v_TJK: Tensor,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_T: Tensor,
) -> str | None:
    moved = q_THK, k_TJK, v_TJK, k_cache, v_cache
    if any(x.stride(-1) != 1 for x in (*moved, cos_sin_MR)):
        return "needs a contiguous last dimension"
    return checks.not_float32_compute(cos_sin_MR) or checks.not_float32_compute(*moved)


@triton.jit
def _copy_heads(x, out, head, heads, K: tl.constexpr, stride_h, out_stride_h,
                HEADS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    h = head + tl.arange(0, HEADS)
    d = tl.arange(0, WIDTH)
    mask = (h < heads)[:, None] & (d < K)[None, :]
    value = tl.load(x + h[:, None] * stride_h + d[None, :], mask=mask)
    tl.store(out + h[:, None] * out_stride_h + d[None, :], value, mask=mask)


@triton.jit
def _rope_store(positions, slots, q, k, v, cos_sin, q_out, k_cache, v_cache,
                position_stride, slot_stride, table_stride,
                q_stride_t, q_stride_h, k_stride_t, k_stride_j, v_stride_t, v_stride_j,
                k_cache_stride_n, k_cache_stride_p, k_cache_stride_j,
                v_cache_stride_n, v_cache_stride_p, v_cache_stride_j,
                H: tl.constexpr, J: tl.constexpr, K: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
                HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
                WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    Q_TILES: tl.constexpr = (H + HEADS - 1) // HEADS
    K_TILES: tl.constexpr = (J + HEADS - 1) // HEADS
    TILES: tl.constexpr = Q_TILES + 2 * K_TILES
    t = (tl.program_id(0) // TILES).to(tl.int64)
    tile = tl.program_id(0) % TILES
    if tile < Q_TILES:
        row = cos_sin + tl.load(positions + t * position_stride).to(tl.int64) * table_stride
        rotate_heads(q + t * q_stride_t, q_out + t * (H * K), row, tile * HEADS, H,
                     K, R, q_stride_h, K, HEADS, HALF, REST)  # fmt: skip
    else:
        # Slots of padding are alike: their programs write over each other, in the null block.
        slot = tl.load(slots + t * slot_stride).to(tl.int64)
        if tile < Q_TILES + K_TILES:
            row = cos_sin + tl.load(positions + t * position_stride).to(tl.int64) * table_stride
            stored = k_cache + (slot // P) * k_cache_stride_n + (slot % P) * k_cache_stride_p
            rotate_heads(k + t * k_stride_t, stored, row, (tile - Q_TILES) * HEADS, J,
                         K, R, k_stride_j, k_cache_stride_j, HEADS, HALF, REST)  # fmt: skip
        else:
            stored = v_cache + (slot // P) * v_cache_stride_n + (slot % P) * v_cache_stride_p
            _copy_heads(v + t * v_stride_t, stored, (tile - Q_TILES - K_TILES) * HEADS, J,
                        K, v_stride_j, v_cache_stride_j, HEADS, WIDTH)  # fmt: skip


def rope_store_kv(
    positions_T: Tensor,
    q_THK: Tensor,
    k_TJK: Tensor,
    v_TJK: Tensor,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_T: Tensor,
) -> Tensor:
    num_tokens, q_heads, head_dim = q_THK.shape
    kv_heads, rotated = k_TJK.shape[1], cos_sin_MR.shape[-1]
    out_THK = q_THK.new_empty(q_THK.shape)
    if num_tokens == 0:
        return out_THK
    tile = Tiles.of(q_heads, kv_heads, head_dim, rotated)
    tiles = ceil_div(q_heads, tile.heads) + 2 * ceil_div(kv_heads, tile.heads)
    _rope_store[(num_tokens * tiles,)](
        positions_T, slots_T, q_THK, k_TJK, v_TJK, cos_sin_MR, out_THK, k_cache, v_cache,
        positions_T.stride(0), slots_T.stride(0), cos_sin_MR.stride(0),
        *q_THK.stride()[:2], *k_TJK.stride()[:2], *v_TJK.stride()[:2],
        *k_cache.stride()[:3], *v_cache.stride()[:3],
        H=q_heads, J=kv_heads, K=head_dim, R=rotated, P=k_cache.shape[1],
        HEADS=tile.heads, HALF=tile.half, REST=tile.rest, WIDTH=power_of_two(head_dim),
        **warps(2 * tile.heads * tile.half), **overlap(q_THK.device),
    )  # fmt: skip
    return out_THK
