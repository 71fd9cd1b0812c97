"""norm_rope_store_kv in Triton: one launch, in which a program has a few heads of one token, read once.

T tokens · H query heads · J key/value heads · K head dim, all of it rotated · P block size. The halves of a
head that are rotated with each other lie in registers of their own.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, warps
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.rope.triton import Tiles


def unsupported(
    kernel: str,
    positions_T: Tensor,
    q_THK: Tensor,
    k_TJK: Tensor,
    v_TJK: Tensor,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_T: Tensor,
) -> str | None:
    tensors = q_THK, k_TJK, v_TJK, q_weight_K, k_weight_K, k_cache, v_cache
    if any(x.stride(-1) != 1 for x in (*tensors, cos_sin_MR)):
        return "needs a contiguous last dimension"
    if (rotated := cos_sin_MR.shape[-1]) != (head_dim := q_THK.shape[-1]):
        return f"rotates whole heads of {head_dim} features, not {rotated} of them"
    return checks.not_float32_compute(cos_sin_MR) or checks.not_float32_compute(*tensors)


@triton.jit
def _scaled(half, scale, weight, mask, DTYPE: tl.constexpr):
    """Half of some heads, times what the norm gives and the weight, each rounded; back in float32."""
    normal = (half * scale[:, None]).to(DTYPE)
    if weight is not None:
        w = tl.load(weight, mask=mask, other=0.0).to(tl.float32)
        normal = (normal.to(tl.float32) * w).to(DTYPE)
    return normal.to(tl.float32)


@triton.jit
def _norm_heads(x, weight, out, row, head, heads, stride_h, out_stride_h, eps,
                K: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, TURN: tl.constexpr):  # fmt: skip
    """Some heads of one token, normalised, with TURN rotated by the table's row, to their place."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    h, d = head + tl.arange(0, HEADS), tl.arange(0, HALF)
    mask = (h < heads)[:, None] & (d < K // 2)[None, :]
    read = x + h[:, None] * stride_h + d[None, :]
    write = out + h[:, None] * out_stride_h + d[None, :]
    first = tl.load(read, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(read + K // 2, mask=mask, other=0.0).to(tl.float32)
    root = tl.sqrt_rn(tl.sum(first * first + second * second, axis=1) * (1.0 / K) + eps)
    scale = tl.div_rn(tl.full([HEADS], 1.0, tl.float32), root)
    if weight is not None:
        # Every head reads weight and table for itself, from L1: read once, they would cross shared memory.
        at = tl.broadcast_to((weight + d)[None, :], [HEADS, HALF])
        first = _scaled(first, scale, at, mask, DTYPE)
        second = _scaled(second, scale, at + K // 2, mask, DTYPE)
    else:
        first = _scaled(first, scale, None, mask, DTYPE)
        second = _scaled(second, scale, None, mask, DTYPE)
    if TURN:
        table = tl.broadcast_to((row + d)[None, :], [HEADS, HALF])
        cos = tl.load(table, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(table + K // 2, mask=mask, other=0.0).to(tl.float32)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    tl.store(write, first.to(DTYPE), mask=mask)
    tl.store(write + K // 2, second.to(DTYPE), mask=mask)


@triton.jit
def _norm_rope_store(positions, slots, q, k, v, q_weight, k_weight, cos_sin, q_out, k_cache, v_cache, eps,
                     position_stride, slot_stride, table_stride,
                     q_stride_t, q_stride_h, k_stride_t, k_stride_j, v_stride_t, v_stride_j,
                     k_cache_stride_n, k_cache_stride_p, k_cache_stride_j,
                     v_cache_stride_n, v_cache_stride_p, v_cache_stride_j,
                     H: tl.constexpr, J: tl.constexpr, K: tl.constexpr, P: tl.constexpr,
                     HEADS: tl.constexpr, HALF: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    Q_TILES: tl.constexpr = (H + HEADS - 1) // HEADS
    K_TILES: tl.constexpr = (J + HEADS - 1) // HEADS
    TILES: tl.constexpr = Q_TILES + 2 * K_TILES
    t = (tl.program_id(0) // TILES).to(tl.int64)
    tile = tl.program_id(0) % TILES
    row = cos_sin + tl.load(positions + t * position_stride).to(tl.int64) * table_stride
    if tile < Q_TILES:
        _norm_heads(q + t * q_stride_t, q_weight, q_out + t * (H * K), row, tile * HEADS, H,
                    q_stride_h, K, eps, K, HEADS, HALF, True)  # fmt: skip
    else:
        # Slots of padding are alike: their programs write over each other, in the null block.
        slot = tl.load(slots + t * slot_stride).to(tl.int64)
        if tile < Q_TILES + K_TILES:
            stored = k_cache + (slot // P) * k_cache_stride_n + (slot % P) * k_cache_stride_p
            _norm_heads(k + t * k_stride_t, k_weight, stored, row, (tile - Q_TILES) * HEADS, J,
                        k_stride_j, k_cache_stride_j, eps, K, HEADS, HALF, True)  # fmt: skip
        else:
            stored = v_cache + (slot // P) * v_cache_stride_n + (slot % P) * v_cache_stride_p
            _norm_heads(v + t * v_stride_t, None, stored, row, (tile - Q_TILES - K_TILES) * HEADS, J,
                        v_stride_j, v_cache_stride_j, eps, K, HEADS, HALF, False)  # fmt: skip


def norm_rope_store_kv(
    positions_T: Tensor,
    q_THK: Tensor,
    k_TJK: Tensor,
    v_TJK: Tensor,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_T: Tensor,
) -> Tensor:
    num_tokens, q_heads, head_dim = q_THK.shape
    kv_heads = k_TJK.shape[1]
    out_THK = q_THK.new_empty(q_THK.shape)
    if num_tokens == 0:
        return out_THK
    tile = Tiles.of(q_heads, kv_heads, head_dim, head_dim)
    tiles = ceil_div(q_heads, tile.heads) + 2 * ceil_div(kv_heads, tile.heads)
    _norm_rope_store[(num_tokens * tiles,)](
        positions_T, slots_T, q_THK, k_TJK, v_TJK, q_weight_K, k_weight_K, cos_sin_MR, out_THK,
        k_cache, v_cache, eps,
        positions_T.stride(0), slots_T.stride(0), cos_sin_MR.stride(0),
        *q_THK.stride()[:2], *k_TJK.stride()[:2], *v_TJK.stride()[:2],
        *k_cache.stride()[:3], *v_cache.stride()[:3],
        H=q_heads, J=kv_heads, K=head_dim, P=k_cache.shape[1], HEADS=tile.heads, HALF=tile.half,
        **warps(2 * tile.heads * tile.half), **overlap(q_THK.device),
    )  # fmt: skip
    return out_THK
