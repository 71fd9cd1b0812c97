"""response_norm in Triton: squares of parts of an image, factors of its channels, then one pass that scales.

N pixels of an image · C channels · P parts of an image, of LENGTH tiles of PIXELS pixels. The map is read
twice and written once: the second pass computes the activation again, where keeping it would write and read
the map once more.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import activated
from fastkernels.kernels.launch import (
    TILE_ELEMENTS,
    ceil_div,
    multiprocessors,
    power_of_two,
    rows_in_a_tile,
    warps,
)

WIDEST_TILE = 512  # channels of a program that scales
CHANNELS_OF_A_PART = (32, 128)  # fewest and most
PARTS_OF_A_PROCESSOR = 4  # programs that hide each other's latency
# All channels of all parts of an image are one load of one program: part after part each would cost the
# latency of memory. 1,024 threads have 64 registers each.
MOST_PARTS, MOST_SQUARES = 16, 32768
ELEMENTS_OF_A_WARP = 1024  # of that load


def unsupported(
    kernel: str, x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, eps: float, activation: str
) -> str | None:
    if (channels := x_BYXC.shape[-1]) > MOST_SQUARES:
        return f"serves up to {MOST_SQUARES} channels, not {channels}"
    if not (x_BYXC.is_contiguous() and weight_C.is_contiguous() and bias_C.is_contiguous()):
        return "needs a contiguous map and contiguous parameters"
    return checks.not_float32_compute(x_BYXC, weight_C, bias_C)


@triton.jit
def _activated(x, at, mask, NAME: tl.constexpr):
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if NAME != "none":
        value = activated(value, NAME)  # of zero zero: what is masked adds nothing
    return value


@triton.jit(do_not_specialize=["N", "P", "LENGTH"])
def _squares(x, squares, N, P, LENGTH, C: tl.constexpr, NAME: tl.constexpr, PIXELS: tl.constexpr,
             CHANNELS: tl.constexpr):  # fmt: skip
    """squares [B, P, C]: the sum of a part's squares."""
    part, image = tl.program_id(0), tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < C
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for tile in range(LENGTH):
        pixel = (part * LENGTH + tile) * PIXELS + tl.arange(0, PIXELS)
        mask = (pixel < N)[:, None] & is_channel[None, :]
        h = _activated(x, (image * N + pixel)[:, None] * C + channel[None, :], mask, NAME)
        total += h * h
    tl.store(squares + (image * P + part) * C + channel, tl.sum(total, 0), mask=is_channel)


@triton.jit(do_not_specialize=["P"])
def _factors(squares, weight, factors, P, eps, C: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """factors [B, C]: 1 + weight n."""
    image, part, channel = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS), tl.arange(0, WIDTH)
    is_channel = channel < C
    mask = (part < P)[:, None] & is_channel[None, :]
    at = (image * P + part)[:, None] * C + channel[None, :]
    g = tl.sqrt_rn(tl.sum(tl.load(squares + at, mask=mask, other=0.0), 0))
    n = g / (tl.sum(g, 0) * (1.0 / C) + eps)
    w = tl.load(weight + channel, mask=is_channel, other=0.0).to(tl.float32)
    tl.store(factors + image * C + channel, 1.0 + w * n, mask=is_channel)


@triton.jit(do_not_specialize=["N"])
def _scale(x, factors, bias, y, N, C: tl.constexpr, NAME: tl.constexpr, PIXELS: tl.constexpr,
           CHANNELS: tl.constexpr):  # fmt: skip
    image = tl.program_id(2).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < C
    factor = tl.load(factors + image * C + channel, mask=is_channel, other=0.0)
    b = tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)
    mask = (pixel < N)[:, None] & is_channel[None, :]
    at = (image * N + pixel)[:, None] * C + channel[None, :]
    value = _activated(x, at, mask, NAME) * factor[None, :] + b[None, :]
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


def response_norm(x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, eps: float, activation: str) -> Tensor:
    y_BYXC = torch.empty_like(x_BYXC)
    if y_BYXC.numel() == 0:
        return y_BYXC
    images, channels = len(x_BYXC), x_BYXC.shape[-1]
    pixels = x_BYXC[0].numel() // channels
    factors_BC = factors(x_BYXC, weight_C, eps, activation)
    width = min(WIDEST_TILE, power_of_two(channels))
    rows = rows_in_a_tile(images * pixels, width, x_BYXC)
    _scale[(ceil_div(pixels, rows), ceil_div(channels, width), images)](
        x_BYXC, factors_BC, bias_C, y_BYXC, pixels, C=channels, NAME=activation, PIXELS=rows, CHANNELS=width,
        **warps(rows * width),
    )  # fmt: skip
    return y_BYXC


def factors(x_BYXC: Tensor, weight_C: Tensor, eps: float, activation: str) -> Tensor:
    """float32 [B, C]: what the norm multiplies each channel of an image by."""
    images, channels = len(x_BYXC), x_BYXC.shape[-1]
    squares_BPC = _squares_of_parts(x_BYXC.view(images, -1, channels), activation)
    parts, whole = squares_BPC.shape[1], power_of_two(channels)
    factors_BC = squares_BPC.new_empty(images, channels)
    _factors[(images,)](
        squares_BPC, weight_C, factors_BC, parts, eps, C=channels, PARTS=power_of_two(parts), WIDTH=whole,
        num_warps=max(1, min(32, power_of_two(parts) * whole // ELEMENTS_OF_A_WARP)),
    )  # fmt: skip
    return factors_BC


def _squares_of_parts(x_BNC: Tensor, activation: str) -> Tensor:
    """float32 [B, P, C]: the sum of the squares of each part of an image."""
    images, pixels, channels = x_BNC.shape
    most = min(MOST_PARTS, MOST_SQUARES // power_of_two(channels))
    wanted = PARTS_OF_A_PROCESSOR * multiprocessors(x_BNC.device)
    narrowest, widest = CHANNELS_OF_A_PART
    width = min(widest, power_of_two(channels))
    while width > narrowest and images * ceil_div(channels, width) * most < wanted:
        width //= 2
    columns, tile = ceil_div(channels, width), TILE_ELEMENTS // width
    tiles = ceil_div(pixels, tile)
    length = ceil_div(tiles, min(tiles, most, ceil_div(wanted, images * columns)))
    parts = ceil_div(tiles, length)
    squares_BPC = torch.empty(images, parts, channels, dtype=torch.float32, device=x_BNC.device)
    _squares[(parts, columns, images)](
        x_BNC, squares_BPC, pixels, parts, length, C=channels, NAME=activation, PIXELS=tile, CHANNELS=width,
        **warps(tile * width),
    )  # fmt: skip
    return squares_BPC
