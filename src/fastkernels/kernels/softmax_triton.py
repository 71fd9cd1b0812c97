"""softmax in Triton: narrow rows in registers, read once; wide rows (a vocabulary) in two passes.

T rows · D width. The first pass finds, for each row, the maximum m and the sum s of exp(x - m); the second
reads the row again, from L2, and writes. With many rows a program takes a whole one and keeps m and s as it
goes; when a block raises the maximum to m', s becomes s exp(m - m'). A few rows would leave most of the
device idle: there each part of a row has a program, in two kernels.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import (
    Rows,
    ceil_div,
    multiprocessors,
    power_of_two,
    rows_in_a_tile,
    rows_of,
    warps,
)

# Widest row held in the registers of 512 threads; wider ones are streamed in blocks.
WIDEST_IN_REGISTERS = 16384
STREAM_BLOCK = 8192
# Fewer rows than two for each processor are cut into parts, the largest of these that keep all of them busy.
PARTS = (8192, 4096, 2048, 1024)


def unsupported(kernel: str, x_TD: Tensor) -> str | None:
    return checks.not_float32_compute(x_TD)


@triton.jit(do_not_specialize=["count"])
def _softmax_rows(x, y, count, inner, outer_stride, inner_stride,
                  D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    # Rows past the end compute on zeros: -inf in all columns would make NaN.
    mask = (row < count)[:, None] & (column < D)[None, :]
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value = tl.where((column < D)[None, :], value, float("-inf"))
    weight = tl.exp(value - tl.max(value, axis=1)[:, None])
    result = weight / tl.sum(weight, axis=1)[:, None]
    tl.store(y + row[:, None] * D + column[None, :], result.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _softmax_stream(x, y, inner, outer_stride, inner_stride, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += (row // inner) * outer_stride + (row % inner) * inner_stride
    y += row * D
    column = tl.arange(0, BLOCK)
    # One maximum and sum for each lane: a single reduction at the end instead of one for every block.
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        value = tl.load(x + start + column, mask=start + column < D, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, value)
        # While a lane has seen nothing but -inf, -inf - -inf must not make NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(highest - shift) + tl.exp(value - shift)
        highest = higher
    row_highest = tl.max(highest, axis=0)
    row_shift = tl.where(row_highest == float("-inf"), 0.0, row_highest)
    row_total = tl.sum(total * tl.exp(highest - row_shift), axis=0)
    for start in range(0, D, BLOCK):
        mask = start + column < D
        value = tl.load(x + start + column, mask=mask, other=float("-inf")).to(tl.float32)
        result = tl.exp(value - row_shift) / row_total
        tl.store(y + start + column, result.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _part_of_row(x, highest, total, inner, outer_stride, inner_stride, D: tl.constexpr, BLOCK: tl.constexpr):
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = part * BLOCK + tl.arange(0, BLOCK)
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start + column, mask=column < D, other=float("-inf")).to(tl.float32)
    top = tl.max(value, axis=0)
    weight = tl.exp(value - tl.where(top == float("-inf"), 0.0, top))
    slot = row * tl.num_programs(0) + part
    tl.store(highest + slot, top)
    tl.store(total + slot, tl.sum(weight, axis=0))


@triton.jit
def _softmax_part(x, y, highest, total, inner, outer_stride, inner_stride, D: tl.constexpr,
                  BLOCK: tl.constexpr, SLOTS: tl.constexpr):  # fmt: skip
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    mine, first = slot < tl.num_programs(0), row * tl.num_programs(0)
    tops = tl.load(highest + first + slot, mask=mine, other=float("-inf"))
    sums = tl.load(total + first + slot, mask=mine, other=0.0)
    top = tl.max(tops, axis=0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    row_total = tl.sum(sums * tl.exp(tops - shift), axis=0)
    column = part * BLOCK + tl.arange(0, BLOCK)
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start + column, mask=column < D, other=float("-inf")).to(tl.float32)
    result = tl.exp(value - shift) / row_total
    tl.store(y + row * D + column, result.to(y.dtype.element_ty), mask=column < D)


def _wide(x: Rows, y_TD: Tensor, dim: int) -> None:
    busy = 2 * multiprocessors(y_TD.device)
    if x.count >= busy:
        _softmax_stream[(x.count,)](
            x.tensor, y_TD, x.inner, x.outer_stride, x.inner_stride,
            D=dim, BLOCK=STREAM_BLOCK, **warps(STREAM_BLOCK),
        )  # fmt: skip
        return
    block = next((size for size in PARTS if x.count * ceil_div(dim, size) >= busy), PARTS[-1])
    parts = ceil_div(dim, block)
    highest, total = y_TD.new_empty((2, x.count, parts), dtype=torch.float32)
    _part_of_row[(parts, x.count)](
        x.tensor, highest, total, x.inner, x.outer_stride, x.inner_stride, D=dim, BLOCK=block, **warps(block)
    )
    _softmax_part[(parts, x.count)](
        x.tensor, y_TD, highest, total, x.inner, x.outer_stride, x.inner_stride,
        D=dim, BLOCK=block, SLOTS=power_of_two(parts), **warps(block),
    )  # fmt: skip


def softmax(x_TD: Tensor) -> Tensor:
    y_TD = x_TD.new_empty(x_TD.shape)
    if y_TD.numel() == 0:
        return y_TD
    x, dim = rows_of(x_TD), x_TD.shape[-1]
    if dim > WIDEST_IN_REGISTERS:
        _wide(x, y_TD, dim)
        return y_TD
    width = power_of_two(dim)
    rows = rows_in_a_tile(x.count, width, x_TD)
    _softmax_rows[(ceil_div(x.count, rows),)](
        x.tensor, y_TD, x.count, x.inner, x.outer_stride, x.inner_stride,
        D=dim, ROWS=rows, WIDTH=width, **warps(rows * width),
    )  # fmt: skip
    return y_TD
