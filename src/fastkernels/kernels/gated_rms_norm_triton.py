"""gated_rms_norm in Triton: a program normalises and gates one wide row, or several narrow ones, read once.

T rows · D row width · R rows of a tile · G rows with weights of their own.
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

# The widest row that 512 threads hold in registers without spilling: 32 values of x, gate and weight each.
WIDEST = 16384


def unsupported(kernel: str, x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, *_: object) -> str | None:
    if x_TD.shape[-1] > WIDEST:
        return f"serves rows of up to {WIDEST} elements, not {x_TD.shape[-1]}"
    return checks.not_float32_compute(x_TD, gate_TD, weight_D)


@triton.jit(do_not_specialize=["count"])
def _gate_rows(x, gate, weight, y, count, eps,
               x_inner, x_outer_stride, x_inner_stride, g_inner, g_outer_stride, g_inner_stride,
               D: tl.constexpr, G: tl.constexpr, GATE_FIRST: tl.constexpr, SILU: tl.constexpr,
               ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < D)[None, :]
    x_start = (row // x_inner) * x_outer_stride + (row % x_inner) * x_inner_stride
    g_start = (row // g_inner) * g_outer_stride + (row % g_inner) * g_inner_stride
    value = tl.load(x + x_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gate + g_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    w_at = weight + (row % G * D)[:, None] + column[None, :]
    w = tl.load(w_at, mask=mask, other=0.0).to(tl.float32)
    g = g * tl.sigmoid(g) if SILU else tl.sigmoid(g)
    if GATE_FIRST:
        value *= g
    # Correctly rounded: a row has one root, whose error is the error of every element of the row.
    root = tl.sqrt_rn(tl.sum(value * value, axis=1) * (1.0 / D) + eps)
    scale = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)
    result = value * scale[:, None] * w
    if not GATE_FIRST:
        result *= g
    tl.store(y + row[:, None] * D + column[None, :], result.to(y.dtype.element_ty), mask=mask)


def gated_rms_norm(
    x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, gate_first: bool, act: str = "silu"
) -> Tensor:
    y_TD = x_TD.new_empty(x_TD.shape)
    if y_TD.numel() == 0:
        return y_TD
    x, gate, dim = rows_of(x_TD), rows_of(gate_TD), x_TD.shape[-1]
    width = power_of_two(dim)
    rows = rows_in_a_tile(x.count, width, x_TD)
    _gate_rows[(ceil_div(x.count, rows),)](
        x.tensor, gate.tensor, weight_D.contiguous(), y_TD, x.count, eps,
        x.inner, x.outer_stride, x.inner_stride, gate.inner, gate.outer_stride, gate.inner_stride,
        D=dim, G=weight_D.numel() // dim, GATE_FIRST=gate_first, SILU=act == "silu", ROWS=rows,
        WIDTH=width, **warps(rows * width), **overlap(x_TD.device),
    )  # fmt: skip
    return y_TD
