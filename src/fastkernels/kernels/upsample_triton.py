"""upsample in Triton: a program for each tile of output pixels and channels; one pass over the result.

Y, X rows and columns of x · C channels.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, warps

WIDEST_TILE = 512  # channels of a program


def unsupported(kernel: str, x_BYXC: Tensor) -> str | None:
    if not x_BYXC.is_contiguous():
        return "needs a contiguous map"
    return checks.not_float32_compute(x_BYXC)


@triton.jit(do_not_specialize=["pixels"])
def _repeat(x, out, pixels, X, C: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (pixel < pixels)[:, None] & (channel < C)[None, :]
    # Rows are counted over all images: each has an even number of them.
    small = pixel // (2 * X) // 2 * X + pixel % (2 * X) // 2
    value = tl.load(x + small[:, None] * C + channel[None, :], mask=mask, other=0.0)
    tl.store(out + pixel[:, None] * C + channel[None, :], value, mask=mask)


def upsample(x_BYXC: Tensor) -> Tensor:
    batch, rows, columns, channels = x_BYXC.shape
    o_BYXC = x_BYXC.new_empty((batch, 2 * rows, 2 * columns, channels))
    if o_BYXC.numel() == 0:
        return o_BYXC
    pixels, width = o_BYXC.numel() // channels, min(WIDEST_TILE, power_of_two(channels))
    count = rows_in_a_tile(pixels, width, x_BYXC)
    _repeat[(ceil_div(pixels, count), ceil_div(channels, width))](
        x_BYXC, o_BYXC, pixels, columns, C=channels, PIXELS=count, CHANNELS=width, **warps(count * width)
    )
    return o_BYXC
