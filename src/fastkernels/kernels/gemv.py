"""The product of one row with a weight on CUDA cores: what `linear` and `linear_glu` share.

    sum[n] = sum_k weight[n, k] x[k]

A program owns a few rows of the weight and walks their inputs, a tile at a time. A thread loads 16 bytes of a
row, multiplies them in float32 with those of x and adds the 8 products to one sum of its own; threads add up
theirs once, at the end. While a tile is multiplied, the next one is on its way to registers.

A program's first tile is on its way before the kernel ahead has ended (programmatic dependent launch), but
only of a parameter: any other weight may be what that kernel computes.

More rows than one cost more arithmetic than the memory leaves time for: two are slower than cuBLAS but at
4096 x 4096, four take twice its time.

N rows of the weight · K inputs · C vectors of a tile · V elements of a vector
"""

# Triton types a device function's arguments as what a launch passes.
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import Parameter
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.kernels.overlap import overlap, overlapping

VECTOR = tl.constexpr(8)  # 16-bit elements of a 16-byte load


class Tile(NamedTuple):
    """What a program loads in a step: `inputs` columns of `outputs` rows of the weight."""

    outputs: int
    inputs: int
    warps: int


# Within 2 % of the fastest for every weight of Llama's decode step on an H200 (benchmarks/sweeps/linear.py).
TILE = Tile(outputs=2, inputs=512, warps=2)


def tile_of(inputs: int) -> Tile:
    """No wider than the inputs."""
    return TILE._replace(inputs=max(VECTOR.value, min(TILE.inputs, power_of_two(inputs))))


def unsupported(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> str | None:
    count = x_TK.numel() // max(1, x_TK.shape[-1])
    if count > 1:
        return f"serves one row, not {count}"
    if weight_NK.stride(-1) != 1:
        return "needs weights with a contiguous last dimension"
    return checks.not_half(x_TK, weight_NK, *(() if bias_N is None else (bias_N,)))


@triton.jit
def product(x, weight_at_N, K, steps, INPUTS: tl.constexpr, EVEN: tl.constexpr, OVERLAPS: tl.constexpr,
            EARLY: tl.constexpr):  # fmt: skip
    """[N]: x times the rows of a weight that start at weight_at_N."""
    k_CV = tl.arange(0, INPUTS // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    weight_at = weight_at_N[:, None, None] + k_CV[None, :, :]
    if OVERLAPS:
        gdc_launch_dependents()
        if not EARLY:
            gdc_wait()
    weight_NCV = _tile(weight_at, k_CV[None, :, :], K, EVEN)
    if OVERLAPS and EARLY:
        # Before x is read, and before anything is written that the kernel ahead may still read or write.
        gdc_wait()
    sum_NC = tl.zeros([weight_at_N.shape[0], INPUTS // VECTOR], tl.float32)
    for step in range(1, steps):
        next_NCV = _tile(weight_at + step * INPUTS, k_CV[None, :, :], K - step * INPUTS, EVEN)
        x_CV = tl.load(x + (step - 1) * INPUTS + k_CV)
        sum_NC += tl.sum(weight_NCV.to(tl.float32) * x_CV.to(tl.float32)[None, :, :], 2)
        weight_NCV = next_NCV
    last = (steps - 1) * INPUTS
    x_CV = tl.load(x + last + k_CV) if EVEN else tl.load(x + last + k_CV, mask=k_CV < K - last, other=0.0)
    sum_NC += tl.sum(weight_NCV.to(tl.float32) * x_CV.to(tl.float32)[None, :, :], 2)
    return tl.sum(sum_NC, 1)


@triton.jit
def _tile(weight_at, k, left, EVEN: tl.constexpr):
    # evict_first: a weight is read once a step.
    if EVEN:
        return tl.load(weight_at, eviction_policy="evict_first")
    else:
        return tl.load(weight_at, mask=k < left, other=0.0, eviction_policy="evict_first")


def options(weight_NK: Tensor, tile: Tile) -> dict[str, Any]:
    """What launches of `product` have in common: constants, the steps over the inputs, launch options."""
    inputs = weight_NK.shape[1]
    steps = max(1, ceil_div(inputs, tile.inputs))
    return {
        "steps": steps,
        "INPUTS": tile.inputs,
        "EVEN": steps * tile.inputs == inputs,
        "EARLY": overlapping(weight_NK.device) and isinstance(weight_NK, Parameter),
        "num_warps": tile.warps,
        **overlap(weight_NK.device),
    }
