"""layer_norm, alone or of a sum, in Triton: a program normalises a wide row or some narrow ones, read once.

T rows · D row width. Mean and variance are two reductions over registers: the one-pass formula
mean(x^2) - mean(x)^2 would lose the variance of rows with a large mean.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.norms import add_residual, launch, unsupported
from fastkernels.kernels.overlap import follow

__all__ = ["add_layer_norm", "layer_norm", "sum_layer_norm", "unsupported"]


@triton.jit(do_not_specialize=["count"])
def _normalise_rows(x, residual, weight, bias, scale, y, total, count, eps,
                    x_inner, x_outer_stride, x_inner_stride, r_inner, r_outer_stride, r_inner_stride,
                    D: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr, KEEPS: tl.constexpr,
                    ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    here = (column < D)[None, :]
    mask = (row < count)[:, None] & here
    x_start = (row // x_inner) * x_outer_stride + (row % x_inner) * x_inner_stride
    out = row[:, None] * D + column[None, :]

    # Their latency hides behind the reductions.
    w = tl.load(tl.broadcast_to((weight + column)[None, :], [ROWS, WIDTH]), mask=mask, other=0.0)
    b = tl.load(tl.broadcast_to((bias + column)[None, :], [ROWS, WIDTH]), mask=mask, other=0.0)
    value = tl.load(x + x_start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        factor = tl.load(tl.broadcast_to((scale + column)[None, :], [ROWS, WIDTH]), mask=mask, other=0.0)
        value *= factor.to(tl.float32)
    if ADD:
        r_start = (row // r_inner) * r_outer_stride + (row % r_inner) * r_inner_stride
        at = residual + r_start[:, None] + column[None, :]
        if KEEPS:
            value = add_residual(value, at, total + out, mask)
        else:
            value += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=1) * (1.0 / D)
    centred = tl.where(here, value - mean[:, None], 0.0)
    # Correctly rounded: a row has one root, whose error is the error of every element of the row.
    root = tl.sqrt_rn(tl.sum(centred * centred, axis=1) * (1.0 / D) + eps)
    inverse = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)
    result = centred * inverse[:, None] * w.to(tl.float32) + b.to(tl.float32)
    tl.store(y + out, result.to(y.dtype.element_ty), mask=mask)


def layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    parameters = [weight_D, bias_D, weight_D]
    return launch(_normalise_rows, x_TD, None, parameters, eps, SCALED=False, KEEPS=False)


def add_layer_norm(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    scale_D: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    is_scaled = scale_D is not None
    parameters = [weight_D, bias_D, scale_D if is_scaled else weight_D]
    return launch(_normalise_rows, x_TD, residual_TD, parameters, eps, SCALED=is_scaled, KEEPS=True)


def sum_layer_norm(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    parameters = [weight_D, bias_D, weight_D]
    constants = {"SCALED": False, "KEEPS": False}
    return launch(_normalise_rows, x_TD, residual_TD, parameters, eps, keeps=False, **constants)
