"""max_pool2d in Triton: a program for each tile of output pixels and channels.

Y, X, C rows, columns and channels of the input · P, Q rows and columns of the output. A NaN in a window is
its maximum, as in PyTorch.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, warps
from fastkernels.kernels.max_pool2d import pooled_shape

WIDEST_TILE = 128  # channels of a program


def unsupported(kernel: str, x_BYXC: Tensor, window: int, stride: int, padding: int) -> str | None:
    if not x_BYXC.is_contiguous():
        return "needs a contiguous map"
    return checks.not_float32_compute(x_BYXC)


@triton.jit(do_not_specialize=["pixels"])
def _pool(x, out, pixels, Y, X, P, Q, C: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr,
          PADDING: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_pixel, is_channel = pixel < pixels, channel < C
    image, y, column = pixel // (P * Q), pixel // Q % P * STRIDE - PADDING, pixel % Q * STRIDE - PADDING
    top = tl.full([PIXELS, CHANNELS], float("-inf"), tl.float32)
    for u in tl.static_range(WINDOW):
        for v in tl.static_range(WINDOW):
            row_inside = (y + u >= 0) & (y + u < Y)
            inside = is_pixel & row_inside & (column + v >= 0) & (column + v < X)
            at = ((image * Y + y + u) * X + column + v) * C
            mask = inside[:, None] & is_channel[None, :]
            value = tl.load(x + at[:, None] + channel[None, :], mask=mask, other=float("-inf"))
            top = tl.maximum(top, value.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
    where = out + pixel[:, None] * C + channel[None, :]
    tl.store(where, top.to(out.dtype.element_ty), mask=is_pixel[:, None] & is_channel[None, :])


def max_pool2d(x_BYXC: Tensor, window: int, stride: int, padding: int) -> Tensor:
    o_BYXC = x_BYXC.new_empty(pooled_shape(x_BYXC, window, stride, padding))
    if o_BYXC.numel() == 0:
        return o_BYXC
    channels, pixels = o_BYXC.shape[-1], o_BYXC.numel() // o_BYXC.shape[-1]
    width = min(WIDEST_TILE, power_of_two(channels))
    rows = rows_in_a_tile(pixels, width, x_BYXC)
    _pool[(ceil_div(pixels, rows), ceil_div(channels, width))](
        x_BYXC, o_BYXC, pixels, *x_BYXC.shape[1:3], *o_BYXC.shape[1:3],
        C=channels, WINDOW=window, STRIDE=stride, PADDING=padding, PIXELS=rows, CHANNELS=width,
        **warps(rows * width),
    )  # fmt: skip
    return o_BYXC
