"""mean_pool in Triton: a program for each image and tile of channels.

B images · N places · C channels.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, warps

TILE = 4096  # elements of x at a time
WIDEST_TILE = 64  # channels of a program


def unsupported(kernel: str, x_BNC: Tensor) -> str | None:
    if x_BNC.stride(2) != 1:
        return "needs channels side by side"
    return checks.not_float32_compute(x_BNC)


@triton.jit(do_not_specialize=["N"])
def _mean(x, out, N, image_stride, place_stride, C: tl.constexpr, PLACES: tl.constexpr,
          CHANNELS: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < C
    total = tl.zeros([PLACES, CHANNELS], tl.float32)
    for begin in range(0, N, PLACES):
        place = begin + tl.arange(0, PLACES)
        at = image * image_stride + place.to(tl.int64)[:, None] * place_stride + channel[None, :]
        total += tl.load(x + at, mask=(place < N)[:, None] & is_channel[None, :], other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / N
    tl.store(out + image * C + channel, mean.to(out.dtype.element_ty), mask=is_channel)


def mean_pool(x_BNC: Tensor) -> Tensor:
    batch, places, channels = x_BNC.shape
    o_BC = x_BNC.new_empty(batch, channels)
    if o_BC.numel() == 0:
        return o_BC
    width = min(WIDEST_TILE, power_of_two(channels))
    rows = min(TILE // width, power_of_two(places))
    _mean[(batch, ceil_div(channels, width))](
        x_BNC, o_BC, places, x_BNC.stride(0), x_BNC.stride(1),
        C=channels, PLACES=rows, CHANNELS=width, **warps(rows * width),
    )  # fmt: skip
    return o_BC
