"""l2_norm in Triton: a program normalises a wide row or several narrow ones, read once.

T rows · D row width.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps
from fastkernels.kernels.norms import WIDEST


def unsupported(kernel: str, x_TD: Tensor, keep_T: Tensor | None, eps: float) -> str | None:
    if x_TD.shape[-1] > WIDEST:
        return f"serves rows of up to {WIDEST} elements, not {x_TD.shape[-1]}"
    return checks.not_float32_compute(x_TD)


@triton.jit(do_not_specialize=["count"])
def _normalise(x, keep, y, count, eps, inner, outer_stride, inner_stride,
               D: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_row = row < count
    mask = is_row[:, None] & (column < D)[None, :]
    read = mask
    if KEEP:
        read &= (tl.load(keep + row, mask=is_row, other=0) != 0)[:, None]
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start[:, None] + column[None, :], mask=read, other=0.0).to(tl.float32)
    length = tl.maximum(tl.sqrt_rn(tl.sum(value * value, axis=1)), eps)
    result = tl.div_rn(value, tl.broadcast_to(length[:, None], [ROWS, WIDTH]))
    tl.store(y + row[:, None] * D + column[None, :], result.to(y.dtype.element_ty), mask=mask)


def l2_norm(x_TD: Tensor, keep_T: Tensor | None, eps: float) -> Tensor:
    y_TD = x_TD.new_empty(x_TD.shape)
    if not x_TD.numel():
        return y_TD
    x, dim = rows_of(x_TD), x_TD.shape[-1]
    width = power_of_two(dim)
    rows = rows_in_a_tile(x.count, width, x_TD)
    # Without a mask its place is taken by a tensor that is never read.
    keep = y_TD if keep_T is None else keep_T.contiguous().view(torch.uint8)
    _normalise[(ceil_div(x.count, rows),)](
        x.tensor, keep, y_TD, x.count, eps, x.inner, x.outer_stride, x.inner_stride,
        D=dim, KEEP=keep_T is not None, ROWS=rows, WIDTH=width, **warps(rows * width),
    )  # fmt: skip
    return y_TD
