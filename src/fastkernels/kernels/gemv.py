"""Products of 1 to 4 rows with a weight on CUDA cores: what `linear` and `linear_glu` share.

    sum[t, n] = sum_k weight[n, k] x[t, k]

A program owns a few rows of the weight and walks their inputs, a tile at a time. A thread loads 16 bytes of a
row, multiplies them in float32 with those of every x and adds the 8 products to one sum of its own; threads
add up theirs once, at the end. While a tile is multiplied, the next one is on its way to registers.

A program's first tile is on its way before the kernel ahead has ended (programmatic dependent launch), but
only of a parameter: any other weight may be what that kernel computes.

T rows · N rows of the weight · K inputs · C vectors of a tile · V elements of a vector
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
from fastkernels.kernels.launch import Rows, ceil_div, power_of_two

MOST_ROWS = 4  # each takes registers and arithmetic of its own, where only the weight should take time
VECTOR = tl.constexpr(8)  # 16-bit elements of a 16-byte load


class Tile(NamedTuple):
    """What a program loads in a step: `inputs` columns of `outputs` rows of the weight."""

    outputs: int
    inputs: int
    warps: int


# Found on one H200 with one row, cold weights, a graph and a kernel that neither overlapped the one ahead nor
# loaded a tile ahead; more rows were not measured (benchmarks/sweeps/linear.py measures). A thread of each
# has 128 bytes of a tile on their way.
COMMON = Tile(outputs=2, inputs=2048, warps=2)
SMALL = Tile(outputs=4, inputs=1024, warps=2)  # for weights of up to 4096 x 4096
TALL = Tile(outputs=4, inputs=2048, warps=4)  # for heads
SMALL_WEIGHT, TALL_OUTPUTS = 4096 * 4096, 65536
# With more rows, x is most of what a program reads: it is shared by four rows of the weight.
COMMON_ROWS = 2


def tile_of(rows: int, inputs: int, outputs: int) -> Tile:
    """The tile for a call, no wider than its inputs."""
    if outputs >= TALL_OUTPUTS:
        tile = TALL
    else:
        tile = SMALL if rows > COMMON_ROWS or inputs * outputs <= SMALL_WEIGHT else COMMON
    return tile._replace(inputs=max(VECTOR.value, min(tile.inputs, power_of_two(inputs))))


def unsupported(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> str | None:
    count = x_TK.numel() // max(1, x_TK.shape[-1])
    if count > MOST_ROWS:
        return f"serves up to {MOST_ROWS} rows, not {count}"
    if weight_NK.stride(-1) != 1:
        return "needs weights with a contiguous last dimension"
    return checks.not_half(x_TK, weight_NK, *(() if bias_N is None else (bias_N,)))


@triton.jit
def products(x, weight_at_N, T, K, steps, inner, outer_stride, inner_stride, ROWS: tl.constexpr,
             INPUTS: tl.constexpr, EVEN: tl.constexpr, OVERLAPS: tl.constexpr,
             EARLY: tl.constexpr):  # fmt: skip
    """[ROWS, N]: the rows of x times the rows of a weight that start at weight_at_N; 0 from row T on."""
    k_CV = tl.arange(0, INPUTS // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    weight_at = weight_at_N[None, :, None, None] + k_CV[None, None, :, :]
    if OVERLAPS:
        gdc_launch_dependents()
        if not EARLY:
            gdc_wait()
    weight_NCV = _tile(weight_at, k_CV[None, None, :, :], K, EVEN)
    if OVERLAPS and EARLY:
        # Before x is read, and before anything is written that the kernel ahead may still read or write.
        gdc_wait()
    t = tl.arange(0, ROWS)
    row_at = x + (t // inner) * outer_stride + (t % inner) * inner_stride
    x_at = row_at[:, None, None, None] + k_CV[None, None, :, :]
    real = (t < T)[:, None, None, None]
    sum_TNC = tl.zeros([ROWS, weight_at_N.shape[0], INPUTS // VECTOR], tl.float32)
    for step in range(1, steps):
        next_NCV = _tile(weight_at + step * INPUTS, k_CV[None, None, :, :], K - step * INPUTS, EVEN)
        x_TCV = tl.load(x_at + (step - 1) * INPUTS, mask=real, other=0.0)
        sum_TNC += tl.sum(weight_NCV.to(tl.float32) * x_TCV.to(tl.float32), 3)
        weight_NCV = next_NCV
    last = (steps - 1) * INPUTS
    if not EVEN:
        real = real & (k_CV < K - last)[None, None, :, :]
    x_TCV = tl.load(x_at + last, mask=real, other=0.0)
    sum_TNC += tl.sum(weight_NCV.to(tl.float32) * x_TCV.to(tl.float32), 3)
    return tl.sum(sum_TNC, 2)


@triton.jit
def _tile(weight_at, k, left, EVEN: tl.constexpr):
    # evict_first: a weight is read once a step.
    if EVEN:
        return tl.load(weight_at, eviction_policy="evict_first")
    else:
        return tl.load(weight_at, mask=k < left, other=0.0, eviction_policy="evict_first")


def options(x: Rows, weight_NK: Tensor, tile: Tile, overlaps: bool) -> dict[str, Any]:
    """What launches of `products` have in common: constants, the steps over the inputs, launch options."""
    inputs = weight_NK.shape[1]
    steps = max(1, ceil_div(inputs, tile.inputs))
    return {
        "steps": steps,
        "ROWS": power_of_two(x.count),
        "INPUTS": tile.inputs,
        "EVEN": steps * tile.inputs == inputs,
        "OVERLAPS": overlaps,
        "EARLY": overlaps and isinstance(weight_NK, Parameter),
        "num_warps": tile.warps,
        **({"launch_pdl": True} if overlaps else {}),
    }
