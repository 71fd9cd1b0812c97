"""sparse_mm and sparse_mm_add in Triton: every program multiplies as many entries as the others.

Degrees of a graph are heavy-tailed: with a program for each row, the longest row would be the time of the
call. A program has CHUNK entries, wherever rows begin and end. It finds its first row by bisection, writes
the rows that lie in it whole, and leaves what it has of the first and the last row in `partial`. A second
launch adds those up, a program for each place where a row is cut, from the first chunk to the last: no
atomics, so a sum is always the same.

R rows · E entries · D columns of x.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two

CHUNK = 256  # entries of a program: with a million, some thirty programs for each processor of a large GPU
STEP = 16  # entries whose rows of x are on their way together
WIDEST_TILE = 128  # columns of a program
CONTINUED, BEGUN = 0, 1  # places in `partial`: of a row that began in an earlier chunk, of one that goes on


def unsupported(
    kernel: str, starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor, *rest: Any
) -> str | None:
    tensors = (starts_R1, columns_E, values_E, x_ND, *(part for part in rest if isinstance(part, Tensor)))
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "needs contiguous tensors"
    return checks.not_float32_compute(*tensors[2:])


@triton.jit
def _first_from(starts, rows, place):
    """The first row that begins at `place` or behind it; `rows` if none does."""
    low, high = rows * 0, rows
    while low < high:
        middle = (low + high) // 2
        is_before = tl.load(starts + middle) < place
        low = tl.where(is_before, middle + 1, low)
        high = tl.where(is_before, high, middle)
    return low


@triton.jit
def _write(sum_D, total, y, new_total, alpha, row, column, D: tl.constexpr, ADDS: tl.constexpr):
    at = row.to(tl.int64) * D + column
    tl.store(y + at, sum_D.to(y.dtype.element_ty), mask=column < D)
    if ADDS:
        old_D = tl.load(total + at, mask=column < D, other=0.0).to(tl.float32)
        tl.store(new_total + at, (old_D + alpha * sum_D).to(y.dtype.element_ty), mask=column < D)


@triton.jit(do_not_specialize=["rows", "entries", "chunks"])
def _multiply(starts, columns, values, x, total, y, new_total, partial, alpha, rows, entries, chunks,
              D: tl.constexpr, ADDS: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr,
              WIDTH: tl.constexpr, BEGUN: tl.constexpr, CONTINUED: tl.constexpr):  # fmt: skip
    chunk = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    begin = chunk * CHUNK
    end = tl.minimum(begin + CHUNK, entries)
    row = _first_from(starts, rows, begin)
    row = tl.where(tl.load(starts + row) > begin, row - 1, row)  # a row that is cut at `begin`
    first = tl.load(starts + row)
    # Rows without entries behind the last entry belong to the last chunk.
    bound = tl.where(chunk == chunks - 1, end + 1, end)
    while (row < rows) & (first < bound):
        after = tl.load(starts + row + 1)
        high = tl.minimum(after, end)
        sum_SD = tl.zeros([STEP, WIDTH], tl.float32)
        for at in range(tl.maximum(first, begin), high, STEP):
            place = at + tl.arange(0, STEP)
            source = tl.load(columns + place, mask=place < high, other=0).to(tl.int64)
            weight = tl.load(values + place, mask=place < high, other=0.0).to(tl.float32)
            mask = (place < high)[:, None] & (column < D)[None, :]
            value_SD = tl.load(x + source[:, None] * D + column[None, :], mask=mask, other=0.0)
            sum_SD += weight[:, None] * value_SD.to(tl.float32)
        sum_D = tl.sum(sum_SD, 0)
        if (first >= begin) & (after <= end):
            _write(sum_D, total, y, new_total, alpha, row, column, D, ADDS)
        else:
            side = tl.where(first < begin, CONTINUED, BEGUN)
            tl.store(partial + (chunk.to(tl.int64) * 2 + side) * D + column, sum_D, mask=column < D)
        row += 1
        first = after


@triton.jit(do_not_specialize=["rows"])
def _join(starts, total, y, new_total, partial, alpha, rows, D: tl.constexpr, ADDS: tl.constexpr,
          CHUNK: tl.constexpr, WIDTH: tl.constexpr, BEGUN: tl.constexpr,
          CONTINUED: tl.constexpr):  # fmt: skip
    """The row that begins in a chunk and goes on behind it, if there is one."""
    chunk = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    begin, end = chunk * CHUNK, (chunk + 1) * CHUNK
    row = _first_from(starts, rows, end) - 1
    first, after = tl.load(starts + row), tl.load(starts + row + 1)
    if (first >= begin) & (after > end):
        sum_D = tl.load(partial + (chunk.to(tl.int64) * 2 + BEGUN) * D + column, mask=column < D, other=0.0)
        following = chunk + 1
        while following * CHUNK < after:
            at = partial + (following.to(tl.int64) * 2 + CONTINUED) * D + column
            sum_D += tl.load(at, mask=column < D, other=0.0)
            following += 1
        _write(sum_D, total, y, new_total, alpha, row, column, D, ADDS)


def sparse_mm(starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor) -> Tensor:
    return _launched(starts_R1, columns_E, values_E, x_ND, None, 0.0)[0]


def sparse_mm_add(
    starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor, total_RD: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    return _launched(starts_R1, columns_E, values_E, x_ND, total_RD, alpha)


def _launched(
    starts_R1: Tensor,
    columns_E: Tensor,
    values_E: Tensor,
    x_ND: Tensor,
    total_RD: Tensor | None,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    """The product, and what it is added to: without a total the product again."""
    rows, entries, dim = starts_R1.numel() - 1, columns_E.numel(), x_ND.shape[1]
    y_RD = x_ND.new_empty(rows, dim)
    adds = total_RD is not None
    total_RD = total_RD if adds else y_RD
    new_RD = torch.empty_like(y_RD) if adds else y_RD
    if y_RD.numel() == 0:
        return y_RD, new_RD
    chunks, width = max(1, ceil_div(entries, CHUNK)), min(WIDEST_TILE, power_of_two(dim))
    partial = x_ND.new_empty((chunks, 2, dim), dtype=torch.float32)
    tiles = ceil_div(dim, width)
    shape = {"D": dim, "ADDS": adds, "CHUNK": CHUNK, "WIDTH": width, "BEGUN": BEGUN, "CONTINUED": CONTINUED}
    _multiply[(chunks, tiles)](
        starts_R1, columns_E, values_E, x_ND, total_RD, y_RD, new_RD, partial, alpha, rows, entries, chunks,
        STEP=STEP, num_warps=1, **shape,
    )  # fmt: skip
    if chunks > 1:
        _join[(chunks - 1, tiles)](
            starts_R1, total_RD, y_RD, new_RD, partial, alpha, rows, num_warps=1, **shape
        )
    return y_RD, new_RD
