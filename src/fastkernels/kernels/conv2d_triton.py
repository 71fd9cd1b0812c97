"""conv2d in Triton, depthwise only: a program for each tile of output pixels and channels.

Y, X, C rows, columns and channels of the input · P, Q rows and columns of the output · U, V of the filter.
Reading a pixel again for its neighbours costs little: it lies in the cache.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.conv2d import is_depthwise, is_slice, output_shape
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, warps

WIDEST_TILE = 128  # channels of a program


def unsupported(
    kernel: str,
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor | None,
    stride: int,
    padding: int,
    groups: int,
) -> str | None:
    if not is_depthwise(weight_OUVI, groups):
        return "serves depthwise convolutions"
    if not (is_slice(x_BYXC) and weight_OUVI.is_contiguous()):
        return "needs contiguous filters, and a map that is contiguous but for a slice of its channels"
    return checks.not_float32_compute(x_BYXC, weight_OUVI, *([] if bias_O is None else [bias_O]))


@triton.jit(do_not_specialize=["pixels"])
def _depthwise(x, weight, bias, out, pixels, pixel_stride, Y, X, P, Q, C: tl.constexpr,
               U: tl.constexpr, V: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
               HAS_BIAS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_pixel, is_channel = pixel < pixels, channel < C
    image, y, column = pixel // (P * Q), pixel // Q % P * STRIDE - PADDING, pixel % Q * STRIDE - PADDING
    acc = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for u in tl.static_range(U):
        for v in tl.static_range(V):
            row_inside = (y + u >= 0) & (y + u < Y)
            inside = is_pixel & row_inside & (column + v >= 0) & (column + v < X)
            at = ((image * Y + y + u) * X + column + v) * pixel_stride
            mask = inside[:, None] & is_channel[None, :]
            value = tl.load(x + at[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
            factor = tl.load(weight + (channel * U + u) * V + v, mask=is_channel, other=0.0).to(tl.float32)
            acc += value * factor[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    where = out + pixel[:, None] * C + channel[None, :]
    tl.store(where, acc.to(out.dtype.element_ty), mask=is_pixel[:, None] & is_channel[None, :])


def conv2d(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor | None, stride: int, padding: int, groups: int
) -> Tensor:
    o_BYXO = x_BYXC.new_empty(output_shape(x_BYXC, weight_OUVI, stride, padding, groups))
    if o_BYXO.numel() == 0:
        return o_BYXO
    channels, pixels = o_BYXO.shape[-1], o_BYXO.numel() // o_BYXO.shape[-1]
    width = min(WIDEST_TILE, power_of_two(channels))
    rows = rows_in_a_tile(pixels, width, x_BYXC)
    _depthwise[(ceil_div(pixels, rows), ceil_div(channels, width))](
        x_BYXC, weight_OUVI, bias_O, o_BYXO, pixels, x_BYXC.stride(2), *x_BYXC.shape[1:3], *o_BYXO.shape[1:3],
        C=channels, U=weight_OUVI.shape[1], V=weight_OUVI.shape[2], STRIDE=stride, PADDING=padding,
        HAS_BIAS=bias_O is not None, PIXELS=rows, CHANNELS=width, **warps(rows * width),
    )  # fmt: skip
    return o_BYXO
