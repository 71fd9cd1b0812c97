"""group_norm in Triton: moments of parts of an image, moments of its groups, then one pass that normalises.

N pixels of an image · C channels · G groups of S channels · P parts of an image, of LENGTH tiles of PIXELS
pixels. A part merges the moments of its tiles as they come, so a value is read twice in all and a large mean
costs no digits: the one-pass formula mean(x^2) - mean(x)^2 would lose the variance.
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

WIDEST_TILE = 512  # channels of a program
WIDEST_GROUP = 4096
PARTS_OF_A_PROCESSOR = 4  # programs that hide each other's latency


def unsupported(
    kernel: str, x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, groups: int, eps: float, activation: str
) -> str | None:
    if (size := x_BYXC.shape[-1] // groups) > WIDEST_GROUP:
        return f"serves groups of up to {WIDEST_GROUP} channels, not {size}"
    if not (x_BYXC.is_contiguous() and weight_C.is_contiguous() and bias_C.is_contiguous()):
        return "needs a contiguous map and contiguous parameters"
    return checks.not_float32_compute(x_BYXC, weight_C, bias_C)


@triton.jit(do_not_specialize=["N", "P", "LENGTH"])
def _part_moments(x, means, squares, N, P, LENGTH, G: tl.constexpr, S: tl.constexpr, PIXELS: tl.constexpr,
                  GROUPS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """means and squares [B, G, P]: mean of a part's values, and the sum of their squared distances to it."""
    part, image = tl.program_id(0), tl.program_id(2).to(tl.int64)
    group, member = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS), tl.arange(0, SIZE)
    channel = (group * S)[None, :, None] + member[None, None, :]
    is_channel = (group < G)[None, :, None] & (member < S)[None, None, :]
    first = part * LENGTH * PIXELS
    mean, square = tl.zeros([GROUPS], tl.float32), tl.zeros([GROUPS], tl.float32)
    for tile in range(LENGTH):
        pixel = first + tile * PIXELS + tl.arange(0, PIXELS)
        mask = (pixel < N)[:, None, None] & is_channel
        at = (image * N + pixel)[:, None, None] * (G * S) + channel
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        before = tile * PIXELS * S + tl.zeros([1], tl.float32)
        fresh = tl.maximum(tl.minimum(N - first - tile * PIXELS, PIXELS), 0) * S + tl.zeros([1], tl.float32)
        own = tl.sum(tl.sum(value, axis=2), axis=0) / tl.maximum(fresh, 1.0)
        centred = tl.where(mask, value - own[None, :, None], 0.0)
        moved = own - mean
        share = fresh / tl.maximum(before + fresh, 1.0)
        mean += moved * share
        square += tl.sum(tl.sum(centred * centred, axis=2), axis=0) + moved * moved * before * share
    to = (image * G + group) * P + part
    tl.store(means + to, mean, mask=group < G)
    tl.store(squares + to, square, mask=group < G)


@triton.jit(do_not_specialize=["N", "P", "LENGTH"])
def _group_moments(means, squares, mean, scale, N, P, LENGTH, eps, S: tl.constexpr,
                   PARTS: tl.constexpr):  # fmt: skip
    """mean and scale [B G]: of all parts; scale is 1 / sqrt(variance + eps). LENGTH: pixels of a part."""
    row, part = tl.program_id(0), tl.arange(0, PARTS)
    here = part < P
    count = tl.where(here, tl.minimum(N - part * LENGTH, LENGTH) * S, 0).to(tl.float32)
    own = tl.load(means + row * P + part, mask=here, other=0.0)
    square = tl.load(squares + row * P + part, mask=here, other=0.0)
    total = tl.sum(count, axis=0)
    middle = tl.sum(own * count, axis=0) / total
    moved = own - middle
    variance = tl.sum(square + moved * moved * count, axis=0) / total
    # Correctly rounded: a group has one root, whose error is the error of every value of the group.
    root = tl.sqrt_rn(tl.zeros([1], tl.float32) + variance + eps)
    tl.store(mean + row, middle)
    tl.store(scale + row + tl.arange(0, 1), tl.div_rn(tl.full([1], 1.0, tl.float32), root))


@triton.jit(do_not_specialize=["N"])
def _normalise(x, weight, bias, mean, scale, y, N, C: tl.constexpr, S: tl.constexpr, NAME: tl.constexpr,
               PIXELS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    image = tl.program_id(2).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < C
    row = image * (C // S) + channel // S
    middle = tl.load(mean + row, mask=is_channel, other=0.0)
    factor = tl.load(scale + row, mask=is_channel, other=0.0)
    w = tl.load(weight + channel, mask=is_channel, other=0.0).to(tl.float32)
    b = tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)
    mask = (pixel < N)[:, None] & is_channel[None, :]
    at = (image * N + pixel)[:, None] * C + channel[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    value = (value - middle[None, :]) * factor[None, :] * w[None, :] + b[None, :]
    if NAME != "none":
        value = activated(value, NAME)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


def group_norm(
    x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, groups: int, eps: float, activation: str
) -> Tensor:
    y_BYXC = torch.empty_like(x_BYXC)
    if y_BYXC.numel() == 0:
        return y_BYXC
    images, channels = len(x_BYXC), x_BYXC.shape[-1]
    pixels, size = x_BYXC[0].numel() // channels, channels // groups
    mean_BG, scale_BG = _moments(x_BYXC.view(images, pixels, groups, size), eps)
    width = min(WIDEST_TILE, power_of_two(channels))
    rows = rows_in_a_tile(images * pixels, width, x_BYXC)
    _normalise[(ceil_div(pixels, rows), ceil_div(channels, width), images)](
        x_BYXC, weight_C, bias_C, mean_BG, scale_BG, y_BYXC, pixels, C=channels, S=size, NAME=activation,
        PIXELS=rows, CHANNELS=width, **warps(rows * width),
    )  # fmt: skip
    return y_BYXC


def _moments(x_BNGS: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """float32 [B, G]: the mean of each group, and 1 / sqrt(its variance + eps)."""
    images, pixels, groups, size = x_BNGS.shape
    width = power_of_two(size)
    in_a_program = min(power_of_two(groups), max(1, WIDEST_TILE // width))
    tile = max(1, TILE_ELEMENTS // (in_a_program * width))
    columns, tiles = ceil_div(groups, in_a_program), ceil_div(pixels, tile)
    wanted = ceil_div(PARTS_OF_A_PROCESSOR * multiprocessors(x_BNGS.device), images * columns)
    length = ceil_div(tiles, min(tiles, wanted))
    parts = ceil_div(tiles, length)
    means_BGP, squares_BGP = (
        torch.empty(images, groups, parts, dtype=torch.float32, device=x_BNGS.device) for _ in range(2)
    )
    _part_moments[(parts, columns, images)](
        x_BNGS, means_BGP, squares_BGP, pixels, parts, length, G=groups, S=size, PIXELS=tile,
        GROUPS=in_a_program, SIZE=width, **warps(tile * in_a_program * width),
    )  # fmt: skip
    mean_BG, scale_BG = torch.empty_like(means_BGP[..., 0]), torch.empty_like(means_BGP[..., 0])
    _group_moments[(images * groups,)](
        means_BGP, squares_BGP, mean_BG, scale_BG, pixels, parts, length * tile, eps, S=size,
        PARTS=power_of_two(parts), **warps(power_of_two(parts)),
    )  # fmt: skip
    return mean_BG, scale_BG
