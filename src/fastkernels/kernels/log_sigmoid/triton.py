"""log_sigmoid in Triton: a tile of rows and columns for each program.

    log(sigmoid(x)) = min(x, 0) - log1p(e),      e = exp(-|x|)

With u = 1 + e rounded, log1p(e) = log(u) e / (u - 1) is accurate where log(u) alone has lost all digits of e.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps

# Columns of a program: a decode step of one row then still spreads over several processors.
WIDEST_TILE = 1024


def unsupported(kernel: str, x_TD: Tensor, divisor: float) -> str | None:
    return checks.not_float32_compute(x_TD)


@triton.jit(do_not_specialize=["count"])
def _log_sigmoid_rows(x, y, count, inner, outer_stride, inner_stride, column_tiles, factor, D: tl.constexpr,
                      ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % column_tiles) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < D)[None, :]
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    e = tl.exp(-tl.abs(value))
    u = 1.0 + e
    log1p = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    result = (tl.minimum(value, 0.0) - log1p) * factor
    tl.store(y + row[:, None] * D + column[None, :], result.to(y.dtype.element_ty), mask=mask)


def log_sigmoid(x_TD: Tensor, divisor: float) -> Tensor:
    y_TD = x_TD.new_empty(x_TD.shape)
    if y_TD.numel() == 0:
        return y_TD
    x, dim = rows_of(x_TD), x_TD.shape[-1]
    tile = min(WIDEST_TILE, power_of_two(dim))
    column_tiles = ceil_div(dim, tile)
    rows = rows_in_a_tile(x.count * column_tiles, tile, x_TD)
    _log_sigmoid_rows[(ceil_div(x.count, rows) * column_tiles,)](
        x.tensor, y_TD, x.count, x.inner, x.outer_stride, x.inner_stride, column_tiles, 1.0 / divisor,
        D=dim, ROWS=rows, WIDTH=tile, **warps(rows * tile),
    )  # fmt: skip
    return y_TD
