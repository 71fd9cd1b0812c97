"""What rms_norm and layer_norm in Triton share: the widths they serve, the sum before a norm, and the launch.

A program normalises one wide row, or several narrow ones, read once. T rows · D row width.
"""

# Triton types a device function's arguments as what a launch passes.
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps
from fastkernels.kernels.overlap import overlap

# The widest row that 512 threads hold in registers without spilling: 32 values of x, weight and sum each.
WIDEST = 16384


def unsupported(kernel: str, x_TD: Tensor, *rest: Tensor | float | None) -> str | None:
    if x_TD.shape[-1] > WIDEST:
        return f"serves rows of up to {WIDEST} elements, not {x_TD.shape[-1]}"
    return checks.not_float32_compute(x_TD, *(t for t in rest if isinstance(t, Tensor)))


@triton.jit
def add_residual(value, residual_at, total_at, mask):
    """value + residual, rounded to the dtype of `total` and stored there; back in float32."""
    value += tl.load(residual_at, mask=mask, other=0.0).to(tl.float32)
    rounded = value.to(total_at.dtype.element_ty)
    tl.store(total_at, rounded, mask=mask)
    return rounded.to(tl.float32)


def launch(
    kernel: Any,
    x_TD: Tensor,
    residual_TD: Tensor | None,
    parameters: list[Tensor] | list[Tensor | None],
    eps: float,
    keeps: bool = True,
    **constants: bool,
) -> Any:
    """y, or (y, sum) where there is one that is kept: kernel(x, residual, *parameters, y, total, count, eps,
    strides ..., **constants)."""
    y_TD = x_TD.new_empty(x_TD.shape)
    sum_TD = residual_TD.new_empty(x_TD.shape) if residual_TD is not None and keeps else None
    if x_TD.numel():
        x, r = rows_of(x_TD), rows_of(x_TD if residual_TD is None else residual_TD)
        dim = x_TD.shape[-1]
        width = power_of_two(dim)
        rows = rows_in_a_tile(x.count, width, x_TD)
        kernel[(ceil_div(x.count, rows),)](
            x.tensor, r.tensor, *(None if p is None else p.contiguous() for p in parameters), y_TD,
            y_TD if sum_TD is None else sum_TD, x.count, eps,
            x.inner, x.outer_stride, x.inner_stride, r.inner, r.outer_stride, r.inner_stride,
            D=dim, ADD=residual_TD is not None, ROWS=rows, WIDTH=width, **warps(rows * width),
            **overlap(x_TD.device), **constants,
        )  # fmt: skip
    return y_TD if sum_TD is None else (y_TD, sum_TD)
