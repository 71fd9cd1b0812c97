"""rms_norm_grad in Triton: a program takes one wide row, or several narrow ones, each read once.

T rows · D row width · R rows of a tile.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps
from fastkernels.kernels.norms import WIDEST


def unsupported(
    kernel: str, dy_TD: Tensor, x_TD: Tensor, weight_D: Tensor, eps: float, residual_TD: Tensor | None
) -> str | None:
    if dy_TD.shape[-1] > WIDEST:
        return f"serves rows of up to {WIDEST} elements, not {dy_TD.shape[-1]}"
    return checks.not_float32_compute(*checks.given(dy_TD, x_TD, weight_D, residual_TD))


@triton.jit(do_not_specialize=["count"])
def _slope_rows(grad, x, weight, residual, dx, count, eps, g_inner, g_outer_stride, g_inner_stride,
                x_inner, x_outer_stride, x_inner_stride, r_inner, r_outer_stride, r_inner_stride,
                D: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    mask = (row < count)[:, None] & (column < D)
    g_start = (row // g_inner) * g_outer_stride + (row % g_inner) * g_inner_stride
    x_start = (row // x_inner) * x_outer_stride + (row % x_inner) * x_inner_stride
    slope = tl.load(grad + g_start[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    slope *= tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    value = tl.load(x + x_start[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    root = tl.sqrt_rn(tl.sum(value * value, axis=1) * (1.0 / D) + eps)
    scale = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)[:, None]
    normal = value * scale
    result = scale * (slope - normal * (tl.sum(slope * normal, axis=1) * (1.0 / D))[:, None])
    if ADD:
        r_start = (row // r_inner) * r_outer_stride + (row % r_inner) * r_inner_stride
        result += tl.load(residual + r_start[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(dx + row[:, None] * D + column, result.to(dx.dtype.element_ty), mask=mask)


def rms_norm_grad(
    dy_TD: Tensor, x_TD: Tensor, weight_D: Tensor, eps: float, residual_TD: Tensor | None
) -> Tensor:
    dx_TD = dy_TD.new_empty(dy_TD.shape)
    if dx_TD.numel():
        g, x, r = (rows_of(each) for each in (dy_TD, x_TD, dy_TD if residual_TD is None else residual_TD))
        width = power_of_two(dim := dy_TD.shape[-1])
        rows = rows_in_a_tile(g.count, width, dy_TD)
        _slope_rows[(ceil_div(g.count, rows),)](
            g.tensor, x.tensor, weight_D.contiguous(), r.tensor, dx_TD, g.count, eps, *g[2:], *x[2:], *r[2:],
            D=dim, ADD=residual_TD is not None, ROWS=rows, WIDTH=width, **warps(rows * width),
        )  # fmt: skip
    return dx_TD
