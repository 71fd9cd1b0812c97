"""bias_activation in Triton: a tile of rows and columns for each program.

T rows · C width.
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

WIDEST_TILE = 1024  # columns of a program


def unsupported(kernel: str, x_TC: Tensor, bias_C: Tensor, name: str) -> str | None:
    return checks.not_float32_compute(x_TC, bias_C)


@triton.jit(do_not_specialize=["count"])
def _add_and_activate(x, bias, y, count, inner, outer_stride, inner_stride, column_tiles, C: tl.constexpr,
                      NAME: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % column_tiles) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < C)[None, :]
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=column < C, other=0.0).to(tl.float32)[None, :]
    if NAME != "none":
        value = activated(value, NAME)
    tl.store(y + row[:, None] * C + column[None, :], value.to(y.dtype.element_ty), mask=mask)


def bias_activation(x_TC: Tensor, bias_C: Tensor, name: str) -> Tensor:
    y_TC = x_TC.new_empty(x_TC.shape)
    if y_TC.numel() == 0:
        return y_TC
    x, width = rows_of(x_TC), x_TC.shape[-1]
    tile = min(WIDEST_TILE, power_of_two(width))
    column_tiles = ceil_div(width, tile)
    rows = rows_in_a_tile(x.count * column_tiles, tile, x_TC)
    _add_and_activate[(ceil_div(x.count, rows) * column_tiles,)](
        x.tensor, bias_C, y_TC, x.count, x.inner, x.outer_stride, x.inner_stride, column_tiles,
        C=width, NAME=name, ROWS=rows, WIDTH=tile, **warps(rows * tile),
    )  # fmt: skip
    return y_TC
