"""volume_composite in Triton: a ray for each lane, its samples one after the other."""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.volume_composite import MOST_ALPHA

BLOCK = 128  # rays


def unsupported(kernel: str, *args: Any) -> str | None:
    if wrong := {tensor.dtype for tensor in args} - {torch.float32}:
        return f"computes in float32, not {wrong.pop()}"
    if not all(tensor.is_contiguous() for tensor in args):
        return "needs contiguous tensors"
    return None


@triton.jit
def _covered(thickness):
    """1 - exp(-thickness), of small ones by its series: a difference of two numbers near 1 has few digits."""
    series = 1.0 - thickness / 2.0 * (
        1.0 - thickness / 3.0 * (1.0 - thickness / 4.0 * (1.0 - thickness / 5.0))
    )
    return tl.where(thickness < 0.0625, thickness * series, 1.0 - tl.exp(-thickness))


@triton.jit(do_not_specialize=["rays"])
def _composite(rgba, raw, deltas, out, rays, SAMPLES: tl.constexpr, MOST_ALPHA: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    ray = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = ray < rays
    red = tl.load(rgba + 4 * ray, mask=is_there, other=0.0)
    green = tl.load(rgba + 4 * ray + 1, mask=is_there, other=0.0)
    blue = tl.load(rgba + 4 * ray + 2, mask=is_there, other=0.0)
    through = 1.0 - tl.load(rgba + 4 * ray + 3, mask=is_there, other=1.0)
    for k in range(SAMPLES):
        sample = ray * SAMPLES + k
        delta = tl.load(deltas + sample, mask=is_there, other=0.0)
        density = tl.load(raw + 4 * sample + 3, mask=is_there, other=0.0)
        thickness = tl.where(delta > 0.0, tl.exp(density) * delta, 0.0)
        weight = _covered(thickness) * through
        red += weight * tl.sigmoid(tl.load(raw + 4 * sample, mask=is_there, other=0.0))
        green += weight * tl.sigmoid(tl.load(raw + 4 * sample + 1, mask=is_there, other=0.0))
        blue += weight * tl.sigmoid(tl.load(raw + 4 * sample + 2, mask=is_there, other=0.0))
        through -= weight
        ends = 1.0 - through > MOST_ALPHA
        share = tl.where(ends, 1.0 - through, 1.0)
        red, green, blue = red / share, green / share, blue / share
        through = tl.where(ends, 0.0, through)
    tl.store(out + 4 * ray, red, mask=is_there)
    tl.store(out + 4 * ray + 1, green, mask=is_there)
    tl.store(out + 4 * ray + 2, blue, mask=is_there)
    tl.store(out + 4 * ray + 3, 1.0 - through, mask=is_there)


def volume_composite(rgba_R4: Tensor, raw_RK4: Tensor, deltas_RK: Tensor) -> Tensor:
    rays, samples = deltas_RK.shape
    out_R4 = torch.empty_like(rgba_R4)
    if rays:
        _composite[(triton.cdiv(rays, BLOCK),)](
            rgba_R4, raw_RK4, deltas_RK, out_R4, rays, SAMPLES=samples, MOST_ALPHA=MOST_ALPHA, BLOCK=BLOCK,
            num_warps=4,
        )  # fmt: skip
    return out_R4
