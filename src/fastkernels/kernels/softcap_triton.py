"""softcap in Triton: one pass over the elements.

tanh(u) = 1 - 2 / (exp(2u) + 1)                                  for u >= 0.35, odd
tanh(u) = u - u^3/3 + 2u^5/15 - 17u^7/315 + 62u^9/2835 - ...     below, where that cancels
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import TILE_ELEMENTS, ceil_div, warps
from fastkernels.kernels.overlap import follow, overlap

SMALL = tl.constexpr(0.35)  # the first term left out, 21844 u^13 / 6081075, is 1.2e-8 of u there
FAR = tl.constexpr(20.0)  # exp(2u) stays finite; tanh is 1 from 9.02 on


def unsupported(kernel: str, x: Tensor, cap: float) -> str | None:
    return checks.not_float32_compute(x)


@triton.jit
def _tanh(u):
    size = tl.abs(u)
    far = 1.0 - tl.div_rn(2.0, tl.exp(2.0 * tl.minimum(size, FAR)) + 1.0)
    s = u * u
    tail = (((-1382 / 155925 * s + 62 / 2835) * s - 17 / 315) * s + 2 / 15) * s - 1 / 3
    # A NaN is in neither comparison's favour; it comes through the series.
    return tl.where(size >= SMALL, tl.where(u < 0.0, -far, far), u + u * s * tail)


@triton.jit(do_not_specialize=["count"])
def _bound(x, y, count, cap, TILE: tl.constexpr, OVERLAPS: tl.constexpr):
    follow(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < count
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    capped = _tanh(tl.div_rn(value, tl.zeros([TILE], tl.float32) + cap)) * cap
    tl.store(y + at, capped.to(y.dtype.element_ty), mask=mask)


def softcap(x: Tensor, cap: float) -> Tensor:
    y = x.new_empty(x.shape)
    if y.numel():
        _bound[(ceil_div(y.numel(), TILE_ELEMENTS),)](
            x.contiguous(), y, y.numel(), cap, TILE=TILE_ELEMENTS, **warps(TILE_ELEMENTS), **overlap(x.device)
        )  # fmt: skip
    return y
