"""sigmoid_gate in Triton: a program for some rows and a tile of features.

T rows · D row width.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps
from fastkernels.kernels.overlap import follow, overlap

WIDEST_TILE = 1024  # features of a program


def unsupported(kernel: str, x_TD: Tensor, gate_TG: Tensor, residual_TD: Tensor | None) -> str | None:
    return checks.not_float32_compute(x_TD, gate_TG, *([] if residual_TD is None else [residual_TD]))


@triton.jit(do_not_specialize=["count"])
def _gate(x, gate, residual, y, count,
          x_inner, x_outer_stride, x_inner_stride, g_inner, g_outer_stride, g_inner_stride,
          r_inner, r_outer_stride, r_inner_stride,
          D: tl.constexpr, BY_ROW: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
          OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < D)[None, :]
    x_start = (row // x_inner) * x_outer_stride + (row % x_inner) * x_inner_stride
    g_start = (row // g_inner) * g_outer_stride + (row % g_inner) * g_inner_stride
    value = tl.load(x + x_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if BY_ROW:
        g = tl.load(gate + g_start, mask=row < count, other=0.0).to(tl.float32)[:, None]
    else:
        g = tl.load(gate + g_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value *= tl.sigmoid(g)
    if ADD:
        r_start = (row // r_inner) * r_outer_stride + (row % r_inner) * r_inner_stride
        value += tl.load(residual + r_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row[:, None] * D + column[None, :], value.to(y.dtype.element_ty), mask=mask)


def sigmoid_gate(x_TD: Tensor, gate_TG: Tensor, residual_TD: Tensor | None) -> Tensor:
    y_TD = x_TD.new_empty(x_TD.shape)
    if y_TD.numel() == 0:
        return y_TD
    x, g, dim = rows_of(x_TD), rows_of(gate_TG), x_TD.shape[-1]
    r = x if residual_TD is None else rows_of(residual_TD)
    width = min(WIDEST_TILE, power_of_two(dim))
    rows = rows_in_a_tile(x.count, width, x_TD)
    _gate[(ceil_div(x.count, rows), ceil_div(dim, width))](
        x.tensor, g.tensor, r.tensor, y_TD, x.count, x.inner, x.outer_stride, x.inner_stride,
        g.inner, g.outer_stride, g.inner_stride, r.inner, r.outer_stride, r.inner_stride,
        D=dim, BY_ROW=gate_TG.shape[-1] != dim, ADD=residual_TD is not None, ROWS=rows, WIDTH=width,
        **warps(rows * width), **overlap(x_TD.device),
    )  # fmt: skip
    return y_TD
