"""scaled_add in Triton: a program for some rows and a tile of features.

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


def unsupported(kernel: str, x_TD: Tensor, scale_D: Tensor, residual_TD: Tensor) -> str | None:
    return checks.not_float32_compute(x_TD, scale_D, residual_TD)


@triton.jit(do_not_specialize=["count"])
def _add(x, scale, residual, y, count,
         x_inner, x_outer_stride, x_inner_stride, r_inner, r_outer_stride, r_inner_stride,
         D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < D)[None, :]
    x_start = (row // x_inner) * x_outer_stride + (row % x_inner) * x_inner_stride
    r_start = (row // r_inner) * r_outer_stride + (row % r_inner) * r_inner_stride
    factor = tl.load(tl.broadcast_to((scale + column)[None, :], [ROWS, WIDTH]), mask=mask, other=0.0)
    value = tl.load(x + x_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    before = tl.load(residual + r_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    result = before + factor.to(tl.float32) * value
    tl.store(y + row[:, None] * D + column[None, :], result.to(y.dtype.element_ty), mask=mask)


def scaled_add(x_TD: Tensor, scale_D: Tensor, residual_TD: Tensor) -> Tensor:
    y_TD = x_TD.new_empty(x_TD.shape)
    if y_TD.numel() == 0:
        return y_TD
    x, r, dim = rows_of(x_TD), rows_of(residual_TD), x_TD.shape[-1]
    width = min(WIDEST_TILE, power_of_two(dim))
    rows = rows_in_a_tile(x.count, width, x_TD)
    _add[(ceil_div(x.count, rows), ceil_div(dim, width))](
        x.tensor, scale_D.contiguous(), r.tensor, y_TD, x.count,
        x.inner, x.outer_stride, x.inner_stride, r.inner, r.outer_stride, r.inner_stride,
        D=dim, ROWS=rows, WIDTH=width, **warps(rows * width), **overlap(x_TD.device),
    )  # fmt: skip
    return y_TD
