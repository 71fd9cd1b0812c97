"""grouped_linear in Triton: one launch over the tiles of all experts, rows gathered and scattered in place.

A tile has rows of one expert. How many tiles an expert has is known on the device alone, so the grid is an
upper bound, each program finds its expert from `starts`, and a program past the last tile returns: a captured
CUDA graph stays right whatever the routing is.

S slots · R slots of a row of x · E experts · N outputs · K inputs · TILE_M x TILE_N of y by one program
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.kernels.overlap import follow, overlap

MOST_EXPERTS = 4096  # `starts` lies in the registers of a program
SMALLEST_DOT = 16


class Tile(NamedTuple):
    """Sizes for 16-bit elements (TILE_K halves for float32). `together`: row tiles that run side by side, so
    that they share a tile of the weight in L2."""

    m: int
    n: int
    k: int
    together: int
    num_warps: int
    num_stages: int


# By rows of an expert on average. Few rows: the weight streams past them, so wide loads, many stages.
# The first is within 3 % of the best of 54 on an H200 for one token and for 32 of Gemma 4, Mixtral and Kimi
# Linear (benchmarks/sweeps/experts.py). Of 32 tokens of Mixtral an expert may have more than 16 rows, and
# reads the weights twice with it: the second is 10 % faster then, and 1 % slower where none has
# (experts_vs_vllm.py --variants). The others are not measured yet.
TILES = (
    (4, Tile(16, 128, 128, 1, 4, 5)),
    (16, Tile(32, 128, 128, 1, 4, 4)),
    (64, Tile(64, 128, 64, 4, 4, 4)),
    (None, Tile(128, 256, 64, 8, 8, 3)),
)


def unsupported(
    kernel: str, x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, *_: object
) -> str | None:
    if weight_ENK.shape[0] > MOST_EXPERTS:
        return f"serves up to {MOST_EXPERTS} experts, not {weight_ENK.shape[0]}"
    if x_RK.stride(-1) != 1 or weight_ENK.stride(-1) != 1:
        return "needs contiguous last dimensions"
    return checks.not_float32_compute(x_RK, weight_ENK)


@triton.jit
def place_of(program, row_tiles, column_tiles: tl.constexpr, TOGETHER: tl.constexpr):
    """(row tile, column tile) of a program: those that run together take TOGETHER row tiles and then the next
    columns."""
    first_row_tile = program // (TOGETHER * column_tiles) * TOGETHER
    width = tl.minimum(row_tiles - first_row_tile, TOGETHER)
    inside = program % (TOGETHER * column_tiles)
    return first_row_tile + inside % width, inside // width


@triton.jit
def rows_of_tile(order, starts, row_tile, E: tl.constexpr, EXPERTS: tl.constexpr, TILE_M: tl.constexpr):
    """(expert, slots [TILE_M], which of them are real) of a row tile; EXPERTS and none past the last tile."""
    e = tl.arange(0, EXPERTS)
    begins = tl.load(starts + e, mask=e < E, other=0)
    ends = tl.load(starts + e + 1, mask=e < E, other=0)
    tiles = tl.cdiv(ends - begins, TILE_M)
    tile_ends = tl.cumsum(tiles, axis=0)
    expert = tl.sum((tile_ends <= row_tile).to(tl.int32), axis=0)
    mine = e == expert
    begin, end = tl.sum(tl.where(mine, begins, 0), axis=0), tl.sum(tl.where(mine, ends, 0), axis=0)
    tile_of_expert = row_tile - tl.sum(tl.where(mine, tile_ends - tiles, 0), axis=0)
    place = begin + tile_of_expert * TILE_M + tl.arange(0, TILE_M)
    real = place < end
    return expert, tl.load(order + place, mask=real, other=0).to(tl.int64), real


@triton.jit(do_not_specialize=["row_tiles"])
def _multiply(x, weight, order, starts, slot_weights, y, row_tiles, x_stride, w_stride_e, w_stride_n,
              R: tl.constexpr, E: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WEIGHTED: tl.constexpr,
              EXPERTS: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
              TOGETHER: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    column_tiles: tl.constexpr = (N + TILE_N - 1) // TILE_N
    row_tile, column_tile = place_of(tl.program_id(0), row_tiles, column_tiles, TOGETHER)
    expert, slot, real = rows_of_tile(order, starts, row_tile, E, EXPERTS, TILE_M)
    if expert == EXPERTS:
        return
    n, k = column_tile * TILE_N + tl.arange(0, TILE_N), tl.arange(0, TILE_K)
    x_at = x + (slot // R)[:, None] * x_stride + k[None, :]
    w_at = weight + expert.to(tl.int64) * w_stride_e + n.to(tl.int64)[None, :] * w_stride_n + k[:, None]
    total = tl.zeros([TILE_M, TILE_N], tl.float32)
    for start in range(0, K, TILE_K):
        left = k < K - start
        x_tile = tl.load(x_at + start, mask=real[:, None] & left[None, :], other=0.0)
        w_tile = tl.load(w_at + start, mask=left[:, None] & (n < N)[None, :], other=0.0)
        total = tl.dot(x_tile, w_tile, total, input_precision="ieee")
    if WEIGHTED:
        total *= tl.load(slot_weights + slot, mask=real, other=0.0)[:, None]
    out = y + slot[:, None] * N + n[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=real[:, None] & (n < N)[None, :])


def grouped_linear(
    x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, slot_weights_S: Tensor | None
) -> Tensor:
    slots, (experts, outputs, inputs) = order_S.shape[0], weight_ENK.shape
    y_SN = x_RK.new_empty((slots, outputs))
    if y_SN.numel() == 0:
        return y_SN
    tile = tile_for(slots, experts)
    tile_n = min(tile.n, max(SMALLEST_DOT, power_of_two(outputs)))
    tile_k = min(tile.k * 2 // x_RK.element_size(), max(SMALLEST_DOT, power_of_two(inputs)))
    row_tiles = most_row_tiles(slots, experts, tile.m)
    _multiply[(row_tiles * ceil_div(outputs, tile_n),)](
        x_RK, weight_ENK, order_S, starts_E1, slot_weights_S, y_SN, row_tiles, x_RK.stride(0),
        *weight_ENK.stride()[:2], R=slots // x_RK.shape[0], E=experts, N=outputs, K=inputs,
        WEIGHTED=slot_weights_S is not None, EXPERTS=power_of_two(experts), TILE_M=tile.m, TILE_N=tile_n,
        TILE_K=tile_k, TOGETHER=tile.together, num_warps=tile.num_warps, num_stages=tile.num_stages,
        **overlap(x_RK.device),
    )  # fmt: skip
    return y_SN


def tile_for(slots: int, experts: int) -> Tile:
    """The tile for this many rows of an expert on average."""
    average = ceil_div(slots, experts)
    return next(tile for most, tile in TILES if most is None or average <= most)


def most_row_tiles(slots: int, experts: int, tile_m: int) -> int:
    """Row tiles if every expert ends with a tile of a single row; a tile has a row at least."""
    return min(slots, slots // tile_m + experts)
