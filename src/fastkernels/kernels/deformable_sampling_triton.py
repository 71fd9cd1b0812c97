"""deformable_sampling in Triton: a program for a query and some of its heads, place by place.

Y, X rows and columns of each map, of up to four · N cells · H heads · D features of a head · POINTS places of
a query in each map. Places outside of a map read nothing.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.deformable_sampling import Sides
from fastkernels.kernels.launch import ceil_div, power_of_two, warps

MOST_MAPS = 4
TILE = 128  # features of a program, of as many heads as fit
WIDEST = 1024  # features of a head


def unsupported(kernel: str, value_BNHD: Tensor, sides: Sides, *tensors: Tensor) -> str | None:
    if len(sides) > 2 * MOST_MAPS:
        return f"serves up to {MOST_MAPS} maps, not {len(sides) // 2}"
    if value_BNHD.shape[-1] > WIDEST:
        return f"serves heads of up to {WIDEST} features, not {value_BNHD.shape[-1]}"
    if not all(x.is_contiguous() for x in (value_BNHD, *tensors)):
        return "needs contiguous tensors"
    return next(filter(None, map(checks.not_float32_compute, (value_BNHD, *tensors))), None)


@triton.jit
def _cell(value, row, column, Y, X, share, mask, STEP: tl.constexpr):
    """share times the cell, [HEADS, WIDTH]; nothing of one outside."""
    is_inside = (row >= 0) & (row < Y) & (column >= 0) & (column < X)
    at = (row * X + column).to(tl.int64) * STEP
    cell = tl.load(value + at[:, None], mask=mask & is_inside[:, None], other=0.0).to(tl.float32)
    return share[:, None] * cell


@triton.jit
def _of_map(value, places, weights, total, is_head, mask, Y, X, STEP: tl.constexpr, POINTS: tl.constexpr):
    """total + what the POINTS places of a query, from `places` on, read of one map."""
    for point in tl.static_range(POINTS):
        x = tl.load(places + 2 * point, mask=is_head, other=0.0).to(tl.float32) * X - 0.5
        y = tl.load(places + 2 * point + 1, mask=is_head, other=0.0).to(tl.float32) * Y - 0.5
        weight = tl.load(weights + point, mask=is_head, other=0.0).to(tl.float32)
        # Far outside nothing is read: a place is cut before it is turned into an integer.
        left = tl.minimum(tl.maximum(tl.floor(x), -2.0), X + 1.0)
        top = tl.minimum(tl.maximum(tl.floor(y), -2.0), Y + 1.0)
        u, v = x - left, y - top
        column, row = left.to(tl.int32), top.to(tl.int32)
        total += _cell(value, row, column, Y, X, weight * (1 - v) * (1 - u), mask, STEP)
        total += _cell(value, row, column + 1, Y, X, weight * (1 - v) * u, mask, STEP)
        total += _cell(value, row + 1, column, Y, X, weight * v * (1 - u), mask, STEP)
        total += _cell(value, row + 1, column + 1, Y, X, weight * v * u, mask, STEP)
    return total


@triton.jit(do_not_specialize=["Q", "N", "Y0", "X0", "Y1", "X1", "Y2", "X2", "Y3", "X3"])
def _sample(value, places, weights, out, Q, N, Y0, X0, Y1, X1, Y2, X2, Y3, X3, H: tl.constexpr,
            D: tl.constexpr, MAPS: tl.constexpr, POINTS: tl.constexpr, HEADS: tl.constexpr,
            WIDTH: tl.constexpr):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)  # of all images
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    feature = tl.arange(0, WIDTH)
    is_head = head < H
    mask = is_head[:, None] & (feature < D)[None, :]
    STEP: tl.constexpr = H * D  # from a cell to the next
    value += query // Q * N * STEP + head[:, None] * D + feature[None, :]
    place = (query * H + head) * (MAPS * POINTS)
    places, weights = places + 2 * place, weights + place
    total = tl.zeros([HEADS, WIDTH], tl.float32)
    total = _of_map(value, places, weights, total, is_head, mask, Y0, X0, STEP, POINTS)
    if MAPS > 1:
        value += Y0 * X0 * STEP
        places, weights = places + 2 * POINTS, weights + POINTS
        total = _of_map(value, places, weights, total, is_head, mask, Y1, X1, STEP, POINTS)
    if MAPS > 2:
        value += Y1 * X1 * STEP
        places, weights = places + 2 * POINTS, weights + POINTS
        total = _of_map(value, places, weights, total, is_head, mask, Y2, X2, STEP, POINTS)
    if MAPS > 3:
        value += Y2 * X2 * STEP
        places, weights = places + 2 * POINTS, weights + POINTS
        total = _of_map(value, places, weights, total, is_head, mask, Y3, X3, STEP, POINTS)
    at = (query * H + head[:, None]) * D + feature[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


def deformable_sampling(
    value_BNHD: Tensor, sides: Sides, places_BQHP2: Tensor, weights_BQHP: Tensor
) -> Tensor:
    batch, queries, heads, places = weights_BQHP.shape
    size, maps = value_BNHD.shape[-1], len(sides) // 2
    out_BQHD = value_BNHD.new_empty((batch, queries, heads, size))
    if out_BQHD.numel() == 0:
        return out_BQHD
    width = power_of_two(size)
    tile = min(power_of_two(heads), max(1, TILE // width))
    padded: list[Any] = [*sides, *[0] * (2 * MOST_MAPS - len(sides))]
    _sample[(batch * queries, ceil_div(heads, tile))](
        value_BNHD, places_BQHP2, weights_BQHP, out_BQHD, queries, value_BNHD.shape[1], *padded,
        H=heads, D=size, MAPS=maps, POINTS=places // maps, HEADS=tile, WIDTH=width, **warps(tile * width),
    )  # fmt: skip
    return out_BQHD
