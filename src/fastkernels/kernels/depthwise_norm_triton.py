"""depthwise_norm in Triton: a program for a small rectangle of pixels with all their channels, so that the
norm is a reduction of what the program has summed.

Y, X rows and columns of the input · P, Q of the output · C channels · U, V rows and columns of a filter.
Neighbouring pixels read nearly the same places, which then lie in the cache: a square needs fewer than a row.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.conv2d import output_shape
from fastkernels.kernels.launch import ceil_div, multiprocessors, power_of_two

TILE = 8192  # sums of a program
MOST_PIXELS = 32
WIDEST = 2048  # channels
ELEMENTS_OF_A_WARP = 1024


def unsupported(
    kernel: str,
    x_BYXC: Tensor,
    weight_CUV1: Tensor,
    bias_C: Tensor,
    norm_weight_C: Tensor,
    norm_bias_C: Tensor,
    padding: int,
    eps: float,
) -> str | None:
    if (channels := x_BYXC.shape[-1]) > WIDEST:
        return f"serves up to {WIDEST} channels, not {channels}"
    vectors = (bias_C, norm_weight_C, norm_bias_C)
    if not all(tensor.is_contiguous() for tensor in (x_BYXC, *vectors)):
        return "needs a contiguous map and contiguous parameters"
    return checks.not_float32_compute(x_BYXC, weight_CUV1, *vectors)


@triton.jit(do_not_specialize=["Y", "X", "P", "Q", "across", "down"])
def _convolve(x, weight, bias, norm_weight, norm_bias, y, eps, Y, X, P, Q, across, down, C: tl.constexpr,
              U: tl.constexpr, V: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr,
              COLUMNS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """weight [U, V, C]; across, down: rectangles of a row and of a column of the output."""
    tile = tl.program_id(0)
    image = (tile // (across * down)).to(tl.int64)
    member, channel = tl.arange(0, ROWS * COLUMNS), tl.arange(0, WIDTH)
    row = tile // across % down * ROWS + member // COLUMNS
    column = tile % across * COLUMNS + member % COLUMNS
    is_channel = channel < C
    sums = tl.zeros([ROWS * COLUMNS, WIDTH], tl.float32)
    for u in range(U):
        at_row = row + (u - PADDING)
        is_row = (at_row >= 0) & (at_row < Y)
        for v in tl.static_range(V):
            at_column = column + (v - PADDING)
            is_inside = is_row & (at_column >= 0) & (at_column < X)
            at = ((image * Y + at_row) * X + at_column)[:, None] * C + channel[None, :]
            mask = is_inside[:, None] & is_channel[None, :]
            value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
            factor = tl.load(weight + (u * V + v) * C + channel, mask=is_channel, other=0.0).to(tl.float32)
            sums += value * factor[None, :]
    h = sums + tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    mean = tl.sum(h, axis=1) * (1.0 / C)
    centred = tl.where(is_channel[None, :], h - mean[:, None], 0.0)
    # Correctly rounded: a pixel has one root, whose error is the error of all its channels.
    root = tl.sqrt_rn(tl.sum(centred * centred, axis=1) * (1.0 / C) + eps)
    scale = tl.div_rn(tl.full([ROWS * COLUMNS], 1.0, tl.float32), root)
    w = tl.load(norm_weight + channel, mask=is_channel, other=0.0).to(tl.float32)
    b = tl.load(norm_bias + channel, mask=is_channel, other=0.0).to(tl.float32)
    result = centred * scale[:, None] * w[None, :] + b[None, :]
    to = ((image * P + row) * Q + column)[:, None] * C + channel[None, :]
    is_pixel = (row < P) & (column < Q)
    tl.store(y + to, result.to(y.dtype.element_ty), mask=is_pixel[:, None] & is_channel[None, :])


def depthwise_norm(
    x_BYXC: Tensor,
    weight_CUV1: Tensor,
    bias_C: Tensor,
    norm_weight_C: Tensor,
    norm_bias_C: Tensor,
    padding: int,
    eps: float,
) -> Tensor:
    y_BPQC = x_BYXC.new_empty(output_shape(x_BYXC, weight_CUV1, 1, padding, len(weight_CUV1)))
    if y_BPQC.numel() == 0:
        return y_BPQC
    images, rows, columns, channels = y_BPQC.shape
    width = power_of_two(channels)
    pixels = _pixels(images * rows * columns, width, multiprocessors(x_BYXC.device))
    high = 1 << (pixels.bit_length() - 1) // 2
    wide = pixels // high
    down, across = ceil_div(rows, high), ceil_div(columns, wide)
    # A filter's places lie one behind the other, so channels would be read one by one: a copy costs less.
    weight_UVC = weight_CUV1.squeeze(-1).permute(1, 2, 0).contiguous()
    _convolve[(images * down * across,)](
        x_BYXC, weight_UVC, bias_C, norm_weight_C, norm_bias_C, y_BPQC, eps, *x_BYXC.shape[1:3], rows,
        columns, across, down, C=channels, U=weight_CUV1.shape[1], V=weight_CUV1.shape[2], PADDING=padding,
        ROWS=high, COLUMNS=wide, WIDTH=width, num_warps=min(16, max(1, pixels * width // ELEMENTS_OF_A_WARP)),
    )  # fmt: skip
    return y_BPQC


def _pixels(count: int, width: int, processors: int) -> int:
    """Of a program: as many as its sums allow, but enough programs for every processor."""
    pixels = min(MOST_PIXELS, max(1, TILE // width))
    while pixels > 1 and ceil_div(count, pixels) < processors:
        pixels //= 2
    return pixels
