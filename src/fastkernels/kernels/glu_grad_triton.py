"""glu_grad in Triton: a tile of rows and columns of both halves for each program.

T rows · F width of a half.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.glu_triton import tile_of
from fastkernels.kernels.launch import ceil_div, rows_of


def unsupported(kernel: str, dy_TF: Tensor, x_T2F: Tensor) -> str | None:
    return checks.not_float32_compute(dy_TF, x_T2F)


@triton.jit(do_not_specialize=["count"])
def _slope_rows(grad, x, dx, count, g_inner, g_outer_stride, g_inner_stride, x_inner, x_outer_stride,
                x_inner_stride, column_tiles, F: tl.constexpr, ROWS: tl.constexpr,
                WIDTH: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = ((program % column_tiles) * WIDTH + tl.arange(0, WIDTH))[None, :]
    mask = (row < count)[:, None] & (column < F)
    g_start = (row // g_inner) * g_outer_stride + (row % g_inner) * g_inner_stride
    x_start = (row // x_inner) * x_outer_stride + (row % x_inner) * x_inner_stride
    dy = tl.load(grad + g_start[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    gate_at = x + x_start[:, None] + column
    gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_at + F, mask=mask, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    gate_grad = dy * up * share * (1.0 + gate * (1.0 - share))
    out = dx + row[:, None] * (2 * F) + column
    tl.store(out, gate_grad.to(dx.dtype.element_ty), mask=mask)
    tl.store(out + F, (dy * gate * share).to(dx.dtype.element_ty), mask=mask)


def glu_grad(dy_TF: Tensor, x_T2F: Tensor) -> Tensor:
    dx_T2F = x_T2F.new_empty(x_T2F.shape)
    if dx_T2F.numel():
        width = dy_TF.shape[-1]
        g, x = rows_of(dy_TF), rows_of(x_T2F)
        tile = tile_of(g.count, width, dy_TF)
        column_tiles = ceil_div(width, tile.columns)
        _slope_rows[(ceil_div(g.count, tile.rows) * column_tiles,)](
            g.tensor, x.tensor, dx_T2F, g.count, *g[2:], *x[2:], column_tiles,
            F=width, ROWS=tile.rows, WIDTH=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
    return dx_T2F
