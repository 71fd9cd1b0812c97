"""modulated_layer_norm in Triton: a program normalises one wide row, or several narrow ones, read once.

T rows of all requests · L rows of a request · D row width. A tile of rows may span two requests, so each row
finds its own scale and shift.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps

# The widest row that 512 threads hold in registers without spilling.
WIDEST = 16384


def unsupported(kernel: str, x_BLD: Tensor, scale_BD: Tensor, shift_BD: Tensor, eps: float) -> str | None:
    if x_BLD.shape[-1] > WIDEST:
        return f"serves rows of up to {WIDEST} elements, not {x_BLD.shape[-1]}"
    if scale_BD.stride(-1) != 1 or shift_BD.stride(-1) != 1:
        return "needs a contiguous last dimension"
    return checks.not_float32_compute(x_BLD, scale_BD, shift_BD)


@triton.jit(do_not_specialize=["count"])
def _modulate_rows(x, scale, shift, y, count, length, eps, inner, outer_stride, inner_stride, scale_stride,
                   shift_stride, D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    here = (column < D)[None, :]
    mask = (row < count)[:, None] & here
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    request = row // length

    # Their latency hides behind the reductions.
    factor = tl.load(scale + (request * scale_stride)[:, None] + column[None, :], mask=mask, other=0.0)
    offset = tl.load(shift + (request * shift_stride)[:, None] + column[None, :], mask=mask, other=0.0)
    value = tl.load(x + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=1) * (1.0 / D)
    centred = tl.where(here, value - mean[:, None], 0.0)
    # Correctly rounded: a row has one root, whose error is the error of every element of the row.
    root = tl.sqrt_rn(tl.sum(centred * centred, axis=1) * (1.0 / D) + eps)
    reciprocal = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)
    result = centred * reciprocal[:, None] * (1.0 + factor.to(tl.float32)) + offset.to(tl.float32)
    tl.store(y + row[:, None] * D + column[None, :], result.to(y.dtype.element_ty), mask=mask)


def modulated_layer_norm(x_BLD: Tensor, scale_BD: Tensor, shift_BD: Tensor, eps: float) -> Tensor:
    y_BLD = x_BLD.new_empty(x_BLD.shape)
    if y_BLD.numel() == 0:
        return y_BLD
    x, (_, length, dim) = rows_of(x_BLD), x_BLD.shape
    width = power_of_two(dim)
    rows = rows_in_a_tile(x.count, width, x_BLD)
    _modulate_rows[(ceil_div(x.count, rows),)](
        x.tensor, scale_BD, shift_BD, y_BLD, x.count, length, eps, x.inner, x.outer_stride, x.inner_stride,
        scale_BD.stride(0), shift_BD.stride(0), D=dim, ROWS=rows, WIDTH=width, **warps(rows * width),
    )  # fmt: skip
    return y_BLD
