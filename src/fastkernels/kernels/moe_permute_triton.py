"""moe_align and moe_sum in Triton, one launch each.

moe_align: a program for each expert reads all ids twice, from L2: first it counts those of smaller experts,
which is where its own slots begin, then it writes its slots in rising order. No atomics, so the order is
always the same; ids are few (a slot has 4 bytes, its token's hidden state thousands).

S slots · E experts · T tokens · K experts of a token · D hidden
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, warps
from fastkernels.kernels.overlap import follow, overlap

LARGEST_BLOCK = 1024  # ids of one step of the loop: 8 for each thread of four warps
WIDEST_TILE = 1024  # columns of a program of moe_sum, as in glu


def unsupported(kernel: str, x: Tensor, *_: object) -> str | None:
    if not x.is_contiguous():
        return "needs a contiguous tensor"
    return checks.not_float32_compute(x) if kernel == "moe_sum" else None


@triton.jit(do_not_specialize=["count"])
def _align(ids, order, starts, count, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    follow(OVERLAPS)
    expert, last = tl.program_id(0), tl.num_programs(0) - 1
    lane = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], tl.int32)
    for block in range(0, count, BLOCK):
        slot = block + lane
        id = tl.load(ids + slot, mask=slot < count, other=last + 1)
        before += (id < expert).to(tl.int32)
    begin = tl.sum(before, axis=0)
    tl.store(starts + expert, begin)
    if expert == last:
        tl.store(starts + expert + 1, count)
    for block in range(0, count, BLOCK):
        slot = block + lane
        id = tl.load(ids + slot, mask=slot < count, other=last + 1)
        mine = (id == expert).to(tl.int32)
        tl.store(order + begin + tl.cumsum(mine, axis=0) - 1, slot, mask=mine > 0)
        begin += tl.sum(mine, axis=0)


@triton.jit
def _sum(x, y, column_tiles, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):
    follow(OVERLAPS)
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64)
    column = (program % column_tiles) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    for k in tl.static_range(K):
        total += tl.load(x + (row * K + k) * D + column, mask=column < D, other=0.0).to(tl.float32)
    tl.store(y + row * D + column, total.to(y.dtype.element_ty), mask=column < D)


def moe_align(ids_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    count = ids_TK.numel()
    order_S = ids_TK.new_empty(count, dtype=torch.int32)
    starts_E1 = ids_TK.new_empty(num_experts + 1, dtype=torch.int32)
    block = min(LARGEST_BLOCK, power_of_two(count))
    _align[(num_experts,)](
        ids_TK, order_S, starts_E1, count, BLOCK=block, num_warps=4, **overlap(ids_TK.device)
    )
    return order_S, starts_E1


def moe_sum(x_TKD: Tensor) -> Tensor:
    tokens, slots, dim = x_TKD.shape
    y_TD = x_TKD.new_empty((tokens, dim))
    if y_TD.numel() == 0:
        return y_TD
    tile = min(WIDEST_TILE, power_of_two(dim))
    column_tiles = ceil_div(dim, tile)
    _sum[(tokens * column_tiles,)](
        x_TKD, y_TD, column_tiles, K=slots, D=dim, WIDTH=tile, **warps(tile), **overlap(x_TKD.device)
    )  # fmt: skip
    return y_TD
