"""Depthwise convolutions in Triton, with a bias, an activation and the mean of the map in the same pass.

A program owns a tile of output pixels and channels; for a mean it walks all pixels of an image, so that sums
are added in one order. Where there are enough pixels, each row of a tile is a strip of STRIP output columns:
what is loaded of the map serves all of them that it lies under, and so does a filter's value.

Y, X, C rows, columns and channels of the input · P, Q rows and columns of the output · U, V of the filter.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import activated
from fastkernels.kernels.conv2d import is_depthwise, is_slice, output_shape
from fastkernels.kernels.launch import ceil_div, multiprocessors, power_of_two, rows_in_a_tile, warps
from fastkernels.kernels.overlap import follow, overlap

WIDEST_TILE = 128  # channels of a program
STRIP = 4
RESULTS_OF_A_PROCESSOR = 2048  # threads of a processor, each with a channel of a strip at least. Estimated.
MEAN_ELEMENTS = 2048  # results that a program which takes a mean has at a time
NARROWEST_TILE = 16  # of one that takes a mean: 32 bytes of a pixel at least


def unsupported(
    kernel: str, x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor | None, *rest: Any
) -> str | None:
    gate_and_residual, groups = (rest[:2], rest[4]) if kernel == "conv2d_activation" else ((), rest[2])
    if not is_depthwise(weight_OUVI, groups):
        return "serves depthwise convolutions"
    if any(tensor is not None for tensor in gate_and_residual):
        return "has no gate and no residual"
    if not (is_slice(x_BYXC) and weight_OUVI.is_contiguous()):
        return "needs contiguous filters, and a map that is contiguous but for a slice of its channels"
    return checks.not_float32_compute(x_BYXC, weight_OUVI, *([] if bias_O is None else [bias_O]))


@triton.jit
def _sums(x, weight, bias, image, y, column, is_strip, channel, pixel_stride, Y, X, C: tl.constexpr,
          U: tl.constexpr, V: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
          HAS_BIAS: tl.constexpr, NAME: tl.constexpr, STRIP: tl.constexpr):  # fmt: skip
    """STRIP results [strips, channels], in float32, of output columns from `column` of row y on."""
    is_channel = channel < C
    top, left = y * STRIDE - PADDING, column * STRIDE - PADDING
    start = tl.zeros([1, 1], tl.float32)
    if HAS_BIAS:
        start = tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    a = tl.broadcast_to(start, [y.shape[0], channel.shape[0]])
    b, c, d = a, a, a
    for u in tl.static_range(U):
        inside = is_strip & (top + u >= 0) & (top + u < Y)
        first = ((image * Y + top + u) * X + left) * pixel_stride
        for j in tl.static_range((STRIP - 1) * STRIDE + V):
            mask = (inside & (left + j >= 0) & (left + j < X))[:, None] & is_channel[None, :]
            at = (first + j * pixel_stride)[:, None] + channel[None, :]
            value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
            # For each output column the filter's that lies over this one: the compiler joins equal loads.
            for g in tl.static_range(STRIP):
                if (j >= g * STRIDE) & (j < g * STRIDE + V):
                    factor_at = weight + (channel * U + u) * V + (j - g * STRIDE)
                    factor = tl.load(factor_at, mask=is_channel, other=0.0).to(tl.float32)[None, :]
                    if g == 0:
                        a += value * factor
                    elif g == 1:
                        b += value * factor
                    elif g == 2:
                        c += value * factor
                    else:
                        d += value * factor
    if NAME != "none":
        a, b, c, d = activated(a, NAME), activated(b, NAME), activated(c, NAME), activated(d, NAME)
    return a, b, c, d


@triton.jit(do_not_specialize=["strips"])
def _depthwise(x, weight, bias, out, strips, pixel_stride, Y, X, P, Q, C: tl.constexpr, U: tl.constexpr,
               V: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, HAS_BIAS: tl.constexpr,
               NAME: tl.constexpr, STRIPS: tl.constexpr, STRIP: tl.constexpr, CHANNELS: tl.constexpr,
               OVERLAPS: tl.constexpr):  # fmt: skip
    strip = tl.program_id(0).to(tl.int64) * STRIPS + tl.arange(0, STRIPS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_strip, across = strip < strips, (Q + STRIP - 1) // STRIP
    row, column = strip // across, strip % across * STRIP
    follow(OVERLAPS)
    a, b, c, d = _sums(x, weight, bias, row // P, row % P, column, is_strip, channel, pixel_stride, Y, X, C,
                       U, V, STRIDE, PADDING, HAS_BIAS, NAME, STRIP)  # fmt: skip
    for g in tl.static_range(STRIP):
        result = a if g == 0 else b if g == 1 else c if g == 2 else d
        where = out + (row * Q + column + g)[:, None] * C + channel[None, :]
        mask = (is_strip & (column + g < Q))[:, None] & (channel < C)[None, :]
        tl.store(where, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _depthwise_mean(x, weight, bias, out, mean, pixel_stride, Y, X, P, Q, C: tl.constexpr, U: tl.constexpr,
                    V: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, NAME: tl.constexpr,
                    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    follow(OVERLAPS)
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for begin in range(0, P * Q, PIXELS):
        place = begin + tl.arange(0, PIXELS)
        is_pixel = place < P * Q
        y, column = place // Q, place % Q
        acc, _b, _c, _d = _sums(x, weight, bias, image, y, column, is_pixel, channel, pixel_stride, Y, X, C,
                                U, V, STRIDE, PADDING, True, NAME, 1)  # fmt: skip
        acc = tl.where(is_pixel[:, None], acc, 0.0)
        total += acc
        where = out + (image * P * Q + place)[:, None] * C + channel[None, :]
        tl.store(where, acc.to(out.dtype.element_ty), mask=is_pixel[:, None] & (channel < C)[None, :])
    means = tl.sum(total, 0) / (P * Q)
    tl.store(mean + image * C + channel, means.to(mean.dtype.element_ty), mask=channel < C)


def conv2d(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor | None, stride: int, padding: int, groups: int
) -> Tensor:
    return conv2d_activation(x_BYXC, weight_OUVI, bias_O, None, None, stride, padding, groups, "none")


def conv2d_activation(
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor | None,
    gate: None,
    residual: None,
    stride: int,
    padding: int,
    groups: int,
    name: str,
) -> Tensor:
    o_BYXO = x_BYXC.new_empty(output_shape(x_BYXC, weight_OUVI, stride, padding, groups))
    if o_BYXO.numel() == 0:
        return o_BYXO
    channels, pixels = o_BYXO.shape[-1], o_BYXO.numel() // o_BYXO.shape[-1]
    width = min(WIDEST_TILE, power_of_two(channels))
    is_busy = o_BYXO.numel() >= STRIP * RESULTS_OF_A_PROCESSOR * multiprocessors(x_BYXC.device)
    strip = STRIP if is_busy else 1
    strips = pixels // o_BYXO.shape[2] * ceil_div(o_BYXO.shape[2], strip)
    held = width if strip == 1 else 2 * width  # a strip has more registers: half as many, with as many warps
    rows = rows_in_a_tile(strips * ceil_div(channels, width), held, x_BYXC)
    _depthwise[(ceil_div(strips, rows), ceil_div(channels, width))](
        x_BYXC, weight_OUVI, bias_O, o_BYXO, strips, x_BYXC.stride(2), *x_BYXC.shape[1:3], *o_BYXO.shape[1:3],
        C=channels, U=weight_OUVI.shape[1], V=weight_OUVI.shape[2], STRIDE=stride, PADDING=padding,
        HAS_BIAS=bias_O is not None, NAME=name, STRIPS=rows, STRIP=strip, CHANNELS=width,
        **warps(rows * held), **overlap(x_BYXC.device),
    )  # fmt: skip
    return o_BYXO


def conv2d_activation_mean(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor, stride: int, padding: int, groups: int, name: str
) -> tuple[Tensor, Tensor]:
    """An image's channels are divided among as many programs as keep the processors busy."""
    o_BYXO = x_BYXC.new_empty(output_shape(x_BYXC, weight_OUVI, stride, padding, groups))
    batch, *_, channels = o_BYXO.shape
    mean_BO = o_BYXO.new_empty(batch, channels)
    if o_BYXO.numel() == 0:
        return o_BYXO, mean_BO
    width = min(WIDEST_TILE // 2, power_of_two(channels))
    while width > NARROWEST_TILE and batch * ceil_div(channels, width) < multiprocessors(x_BYXC.device):
        width //= 2
    rows = min(MEAN_ELEMENTS // width, power_of_two(o_BYXO[0, ..., 0].numel()))
    _depthwise_mean[(batch, ceil_div(channels, width))](
        x_BYXC, weight_OUVI, bias_O, o_BYXO, mean_BO, x_BYXC.stride(2), *x_BYXC.shape[1:3],
        *o_BYXO.shape[1:3], C=channels, U=weight_OUVI.shape[1], V=weight_OUVI.shape[2], STRIDE=stride,
        PADDING=padding, NAME=name, PIXELS=rows, CHANNELS=width, **warps(rows * width),
        **overlap(x_BYXC.device),
    )  # fmt: skip
    return o_BYXO, mean_BO
