"""layer_norm_add in Triton: a program normalises a wide row or several narrow ones, read once.

T rows · D row width.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import norms
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, warps


def unsupported(
    kernel: str, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> str | None:
    if not all(tensor.is_contiguous() for tensor in (x_TD, residual_TD, weight_D, bias_D)):
        return "needs contiguous tensors"
    return norms.unsupported(kernel, x_TD, residual_TD, weight_D, bias_D)


@triton.jit(do_not_specialize=["count"])
def _normalise_and_add(x, residual, weight, bias, y, count, eps, D: tl.constexpr, ROWS: tl.constexpr,
                       WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    here = column < D
    mask = (row < count)[:, None] & here[None, :]
    at = row[:, None] * D + column[None, :]
    w = tl.load(weight + column, mask=here, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=here, other=0.0).to(tl.float32)
    past = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=1) * (1.0 / D)
    centred = tl.where(here[None, :], value - mean[:, None], 0.0)
    # Correctly rounded: a row has one root, whose error is the error of every element of the row.
    root = tl.sqrt_rn(tl.sum(centred * centred, axis=1) * (1.0 / D) + eps)
    scale = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)
    result = past + (centred * scale[:, None] * w[None, :] + b[None, :])
    tl.store(y + at, result.to(y.dtype.element_ty), mask=mask)


def layer_norm_add(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    y_TD = x_TD.new_empty(x_TD.shape)
    if y_TD.numel():
        dim = x_TD.shape[-1]
        count, width = x_TD.numel() // dim, power_of_two(dim)
        rows = rows_in_a_tile(count, width, x_TD)
        _normalise_and_add[(ceil_div(count, rows),)](
            x_TD, residual_TD, weight_D, bias_D, y_TD, count, eps, D=dim, ROWS=rows, WIDTH=width,
            **warps(rows * width),
        )  # fmt: skip
    return y_TD
