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
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps

WIDEST_TILE = 1024  # columns of a program

SQRT_HALF = tl.constexpr(0.7071067811865476)
# tanh(u) = 2 sigmoid(2u) - 1, so gelu_tanh(x) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
TWO_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.044715)


def unsupported(kernel: str, x_TF: Tensor, name: str) -> str | None:
    return checks.not_float32_compute(x_TF)


@triton.jit(do_not_specialize=["count"])
def _activate_rows(x, y, count, inner, outer_stride, inner_stride, column_tiles, F: tl.constexpr,
                   NAME: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % column_tiles) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < F)[None, :]
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if NAME == "gelu":
        active = 0.5 * value * (1.0 + tl.erf(value * SQRT_HALF))
    else:
        active = value * tl.sigmoid((value + value * value * value * CUBIC) * TWO_SQRT_2_OVER_PI)
    tl.store(y + row[:, None] * F + column[None, :], active.to(y.dtype.element_ty), mask=mask)


def activation(x_TF: Tensor, name: str) -> Tensor:
    y_TF = x_TF.new_empty(x_TF.shape)
    if y_TF.numel() == 0:
        return y_TF
    x, width = rows_of(x_TF), x_TF.shape[-1]
    tile = min(WIDEST_TILE, power_of_two(width))
    column_tiles = ceil_div(width, tile)
    rows = rows_in_a_tile(x.count * column_tiles, tile, x_TF)
    _activate_rows[(ceil_div(x.count, rows) * column_tiles,)](
        x.tensor, y_TF, x.count, x.inner, x.outer_stride, x.inner_stride, column_tiles,
        F=width, NAME=name, ROWS=rows, WIDTH=tile, **warps(rows * tile),
    )  # fmt: skip
    return y_TF
