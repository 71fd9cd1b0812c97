"""Depthwise convolutions in Triton, with a bias, an activation and the mean of the map in the same pass.

A program owns a tile of output pixels and channels; for a mean it walks all pixels of an image, so that sums
are added in one order. Reading a pixel again for its neighbours costs little: it lies in the cache.

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
def _sums(x, weight, bias, image, place, is_pixel, channel, pixel_stride, Y, X, Q, C: tl.constexpr,
          U: tl.constexpr, V: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
          HAS_BIAS: tl.constexpr, NAME: tl.constexpr, PIXELS: tl.constexpr,
          CHANNELS: tl.constexpr):  # fmt: skip
    """[PIXELS, CHANNELS]: the results at these places of images, in float32."""
    is_channel = channel < C
    y, column = place // Q * STRIDE - PADDING, place % Q * STRIDE - PADDING
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
    if NAME != "none":
        acc = activated(acc, NAME)
    return acc


@triton.jit(do_not_specialize=["pixels"])
def _depthwise(x, weight, bias, out, pixels, pixel_stride, Y, X, P, Q, C: tl.constexpr, U: tl.constexpr,
               V: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, HAS_BIAS: tl.constexpr,
               NAME: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
               OVERLAPS: tl.constexpr):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_pixel = pixel < pixels
    follow(OVERLAPS)
    acc = _sums(x, weight, bias, pixel // (P * Q), pixel % (P * Q), is_pixel, channel, pixel_stride, Y, X, Q,
                C, U, V, STRIDE, PADDING, HAS_BIAS, NAME, PIXELS, CHANNELS)  # fmt: skip
    where = out + pixel[:, None] * C + channel[None, :]
    tl.store(where, acc.to(out.dtype.element_ty), mask=is_pixel[:, None] & (channel < C)[None, :])


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
        acc = _sums(x, weight, bias, image, place, is_pixel, channel, pixel_stride, Y, X, Q, C, U, V, STRIDE,
                    PADDING, True, NAME, PIXELS, CHANNELS)  # fmt: skip
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
    rows = rows_in_a_tile(pixels * ceil_div(channels, width), width, x_BYXC)
    _depthwise[(ceil_div(pixels, rows), ceil_div(channels, width))](
        x_BYXC, weight_OUVI, bias_O, o_BYXO, pixels, x_BYXC.stride(2), *x_BYXC.shape[1:3], *o_BYXO.shape[1:3],
        C=channels, U=weight_OUVI.shape[1], V=weight_OUVI.shape[2], STRIDE=stride, PADDING=padding,
        HAS_BIAS=bias_O is not None, NAME=name, PIXELS=rows, CHANNELS=width, **warps(rows * width),
        **overlap(x_BYXC.device),
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
