"""upsample_concat in Triton: a program for each tile of output pixels and channels; one pass over the result.

Y, X rows and columns of x · C channels of x · D of skip.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, warps

WIDEST_TILE = 128  # channels of a program


def unsupported(kernel: str, x_BYXC: Tensor, skip_BYXD: Tensor) -> str | None:
    if not (x_BYXC.is_contiguous() and skip_BYXD.is_contiguous()):
        return "needs contiguous maps"
    return checks.not_float32_compute(x_BYXC, skip_BYXD)


@triton.jit(do_not_specialize=["pixels"])
def _join(x, skip, out, pixels, Y, X, C: tl.constexpr, D: tl.constexpr, PIXELS: tl.constexpr,
          CHANNELS: tl.constexpr):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_pixel = (pixel < pixels)[:, None]
    column, row = pixel % (2 * X), pixel // (2 * X)  # row counts those of all images: image * 2 Y + y
    small = (row // (2 * Y) * Y + row % (2 * Y) // 2) * X + column // 2
    own, other = is_pixel & (channel < C)[None, :], is_pixel & ((channel >= C) & (channel < C + D))[None, :]
    enlarged = tl.load(x + small[:, None] * C + channel[None, :], mask=own, other=0.0)
    behind = tl.load(skip + pixel[:, None] * D + (channel - C)[None, :], mask=other, other=0.0)
    value = tl.where((channel < C)[None, :], enlarged, behind)
    tl.store(out + pixel[:, None] * (C + D) + channel[None, :], value, mask=own | other)


def upsample_concat(x_BYXC: Tensor, skip_BYXD: Tensor) -> Tensor:
    channels = x_BYXC.shape[-1] + skip_BYXD.shape[-1]
    o_BYXE = x_BYXC.new_empty((*skip_BYXD.shape[:3], channels))
    if o_BYXE.numel() == 0:
        return o_BYXE
    pixels, width = o_BYXE.numel() // channels, min(WIDEST_TILE, power_of_two(channels))
    rows = rows_in_a_tile(pixels, width, x_BYXC)
    _join[(ceil_div(pixels, rows), ceil_div(channels, width))](
        x_BYXC, skip_BYXD, o_BYXE, pixels, *x_BYXC.shape[1:3], C=x_BYXC.shape[-1], D=skip_BYXD.shape[-1],
        PIXELS=rows, CHANNELS=width, **warps(rows * width),
    )  # fmt: skip
    return o_BYXE
