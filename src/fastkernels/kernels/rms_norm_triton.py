"""rms_norm and add_rms_norm in Triton: a program normalises one wide row, or several narrow ones, read once.

T rows · D row width · R rows of a tile. Registers hold the row between the reduction and the scaling, so each
byte crosses the memory bus once; widths and strides that are multiples of 16 give 16-byte accesses.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import norms
from fastkernels.kernels.norms import add_residual, launch
from fastkernels.kernels.overlap import follow


def unsupported(kernel: str, x_TD: Tensor, *rest: Tensor | float | None) -> str | None:
    tensors = [t for t in rest if isinstance(t, Tensor)]
    if kernel == "add_rms_norm":
        kept = tensors.pop(0).dtype
        if kept not in (x_TD.dtype, torch.float32):
            return f"adds a residual of the dtype of x or float32, not {kept}"
    return norms.unsupported(kernel, x_TD, *tensors)


@triton.jit(do_not_specialize=["count"])
def _normalise_rows(x, residual, weight, y, total, count, eps,
                    x_inner, x_outer_stride, x_inner_stride, r_inner, r_outer_stride, r_inner_stride,
                    D: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                    OVERLAPS: tl.constexpr, PLUS_ONE: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < D)[None, :]
    x_start = (row // x_inner) * x_outer_stride + (row % x_inner) * x_inner_stride
    out = row[:, None] * D + column[None, :]

    # The weight's latency hides behind the reduction. Every row of a tile reads it for itself, from L1: read
    # once, it would cross shared memory behind a barrier.
    if weight is not None:
        w = tl.load(tl.broadcast_to((weight + column)[None, :], [ROWS, WIDTH]), mask=mask, other=0.0).to(
            tl.float32
        )
    value = tl.load(x + x_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if ADD:
        r_start = (row // r_inner) * r_outer_stride + (row % r_inner) * r_inner_stride
        value = add_residual(value, residual + r_start[:, None] + column[None, :], total + out, mask)

    # Correctly rounded: a row has one root, whose error is the error of every element of the row.
    root = tl.sqrt_rn(tl.sum(value * value, axis=1) * (1.0 / D) + eps)
    scale = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)
    normal = value * scale[:, None]
    if PLUS_ONE:
        normal *= 1.0 + w
    elif weight is not None:  # rounded before the weight, as the contract says; the product rounds once more
        normal = normal.to(y.dtype.element_ty).to(tl.float32) * w
    tl.store(y + out, normal.to(y.dtype.element_ty), mask=mask)


def rms_norm(x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False) -> Tensor:
    return launch(_normalise_rows, x_TD, None, [weight_D], eps, PLUS_ONE=plus_one)


def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    return launch(_normalise_rows, x_TD, residual_TD, [weight_D], eps, PLUS_ONE=plus_one)
