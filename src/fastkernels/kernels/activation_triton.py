"""activation in Triton: a tile of rows and columns for each program.

T rows · F width.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import activated
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps
from fastkernels.kernels.overlap import follow, overlap

WIDEST_TILE = 1024  # columns of a program


def unsupported(kernel: str, x_TF: Tensor, name: str, divisor: float) -> str | None:
    return checks.not_float32_compute(x_TF)


@triton.jit(do_not_specialize=["count"])
def _activate_rows(x, y, count, inner, outer_stride, inner_stride, column_tiles, factor, F: tl.constexpr,
                   NAME: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                   OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % column_tiles) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < F)[None, :]
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    active = activated(value, NAME) * factor
    tl.store(y + row[:, None] * F + column[None, :], active.to(y.dtype.element_ty), mask=mask)


def activation(x_TF: Tensor, name: str, divisor: float) -> Tensor:
    y_TF = x_TF.new_empty(x_TF.shape)
    if y_TF.numel() == 0:
        return y_TF
    x, width = rows_of(x_TF), x_TF.shape[-1]
    tile = min(WIDEST_TILE, power_of_two(width))
    column_tiles = ceil_div(width, tile)
    rows = rows_in_a_tile(x.count * column_tiles, tile, x_TF)
    _activate_rows[(ceil_div(x.count, rows) * column_tiles,)](
        x.tensor, y_TF, x.count, x.inner, x.outer_stride, x.inner_stride, column_tiles, 1.0 / divisor,
        F=width, NAME=name, ROWS=rows, WIDTH=tile, **warps(rows * tile), **overlap(x_TF.device),
    )  # fmt: skip
    return y_TF
