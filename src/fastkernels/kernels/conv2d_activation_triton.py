"""conv2d_activation over all channels in Triton: a matrix product of pixels with filters, whose rows are
gathered from the map while it is multiplied (an implicit GEMM).

    o[m, n] = act(sum_k a[m, k] weight[n, k] + bias[n]) + residual[m, n],    k = (u, v, c)
    a[m, k] = gate[b, c] x[b, s y + u - p, s x + v - p, c]                   m = (b, y, x)

The gate is applied to what was loaded, bias, activation and residual to what is still in registers: of the
map nothing is written but o. Where there are too few tiles to keep the processors busy, several programs
share the sum of one (kernels/skinny.py); the last to end adds it up, in one order. Float32 is multiplied by
the tensor cores as three products of its parts (tf32x3), which is nearly as exact as float32 is.

Y, X, C rows, columns and channels of the input · P, Q rows and columns of the output, N its channels · U, V
of the filter · K = U V C.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import activated
from fastkernels.kernels.conv2d import is_slice, output_shape
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.launch import ceil_div, multiprocessors, power_of_two
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.skinny import all_splits

# Of windows, in 16 bits: of more channels cuDNN multiplies well enough by the tensor cores; of fewer, the map
# that is written before the activation costs more than the product. Estimated.
MOST_CHANNELS = 32
SMALLEST_DOT = 16
WHOLE_PLACE = 32  # inputs of a step, at least, for which it is worth to be fewer than they could be


class Tile(NamedTuple):
    """What a program multiplies in a step: pixels by outputs, over some inputs. splits: programs that share
    the inputs of a tile."""

    pixels: int
    outputs: int
    inputs: int
    stages: int
    warps: int
    splits: int = 1


# The first that gives nearly every processor a program, else the last. Inputs are those of 16-bit maps; of
# float32 half as many.
TILES = (
    Tile(128, 128, 64, 3, 8),
    Tile(128, 64, 64, 3, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(64, 32, 64, 4, 4),
    Tile(32, 32, 128, 4, 4),
    Tile(16, 32, 128, 4, 4),
)
FULL = 0.9  # of the processors with a program are nearly every one
MOST_SPLITS, STEPS_OF_A_SPLIT = 8, 4
PROGRAMS_OF_A_PROCESSOR = 2  # where a tile is split: each waits for memory most of the time


def tile_of(pixels: int, outputs: int, places: int, channels: int, itemsize: int, processors: int) -> Tile:
    """places: of the window. Where a step's inputs divide the channels it reads one place of the window."""
    fitting = [t for t in TILES if t.outputs < 2 * outputs] or [TILES[-1]]
    wanted = int(FULL * processors)
    tile = next((t for t in fitting if _count(pixels, outputs, t) >= wanted), fitting[-1])
    most = tile.inputs if itemsize == 2 else tile.inputs // 2
    if places > 1 and gcd(channels, most) >= WHOLE_PLACE:
        most = gcd(channels, most)
    tile = tile._replace(inputs=max(SMALLEST_DOT, min(most, power_of_two(places * channels))))
    tiles, steps = _count(pixels, outputs, tile), ceil_div(places * channels, tile.inputs)
    if tiles >= wanted:
        return tile
    splits = min(
        ceil_div(PROGRAMS_OF_A_PROCESSOR * processors, tiles), MOST_SPLITS, steps // STEPS_OF_A_SPLIT
    )
    return tile._replace(splits=max(1, splits))


def _count(pixels: int, outputs: int, tile: Tile) -> int:
    return ceil_div(pixels, tile.pixels) * ceil_div(outputs, tile.outputs)


def unsupported(
    kernel: str,
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor,
    gate_BC: Tensor | None,
    residual_BYXO: Tensor | None,
    stride: int,
    padding: int,
    groups: int,
    name: str,
) -> str | None:
    _, height, width, channels = weight_OUVI.shape
    if groups != 1:
        return "serves one group"
    if x_BYXC.element_size() == 2 and height * width > 1 and channels > MOST_CHANNELS:
        return f"serves windows of up to {MOST_CHANNELS} channels in 16 bits"
    others = [tensor for tensor in (bias_O, gate_BC, residual_BYXO) if tensor is not None]
    if not (is_slice(x_BYXC) and all(tensor.is_contiguous() for tensor in (weight_OUVI, *others))):
        return "needs contiguous tensors; the map may be a slice of the channels of one"
    return checks.not_float32_compute(x_BYXC, weight_OUVI, *others)


@triton.jit
def _finish(sum_MN, bias, residual, out, pixels, N: tl.constexpr, NAME: tl.constexpr, PIXELS: tl.constexpr,
            OUTPUTS: tl.constexpr):  # fmt: skip
    across: tl.constexpr = (N + OUTPUTS - 1) // OUTPUTS
    pixel = (tl.program_id(0) // across).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    n = tl.program_id(0) % across * OUTPUTS + tl.arange(0, OUTPUTS)
    if bias is not None:
        sum_MN += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if NAME != "none":
        sum_MN = activated(sum_MN, NAME)
    where = pixel[:, None] * N + n[None, :]
    mask_MN = (pixel < pixels)[:, None] & (n < N)[None, :]
    if residual is not None:
        sum_MN += tl.load(residual + where, mask=mask_MN, other=0.0).to(tl.float32)
    tl.store(out + where, sum_MN.to(out.dtype.element_ty), mask=mask_MN)


@triton.jit(do_not_specialize=["pixels"])
def _convolve(x, weight, bias, gate, residual, out, partial, counters, pixels, pixel_stride, Y, X, P, Q,
              C: tl.constexpr, N: tl.constexpr, U: tl.constexpr, V: tl.constexpr, STRIDE: tl.constexpr,
              PADDING: tl.constexpr, NAME: tl.constexpr, PIXELS: tl.constexpr, OUTPUTS: tl.constexpr,
              INPUTS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
              OVERLAPS: tl.constexpr):  # fmt: skip
    # Programs beside each other share their pixels; the filters lie in L2 anyhow.
    across: tl.constexpr = (N + OUTPUTS - 1) // OUTPUTS
    pixel = (tl.program_id(0) // across).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    n = tl.program_id(0) % across * OUTPUTS + tl.arange(0, OUTPUTS)
    is_pixel, is_output = pixel < pixels, n < N
    image, place = pixel // (P * Q), pixel % (P * Q)
    y, column = place // Q * STRIDE - PADDING, place % Q * STRIDE - PADDING
    corner = (image * Y + y) * X + column
    ks = tl.arange(0, INPUTS)
    follow(OVERLAPS)
    sum_MN = tl.zeros([PIXELS, OUTPUTS], tl.float32)
    share: tl.constexpr = (U * V * C + SPLITS * INPUTS - 1) // (SPLITS * INPUTS) * INPUTS
    first = tl.program_id(1) * share
    for begin in tl.range(first, tl.minimum(first + share, U * V * C), INPUTS, num_stages=STAGES):
        k = begin + ks
        mask_NK = is_output[:, None] & (k < U * V * C)[None, :]
        weight_NK = tl.load(weight + n[:, None] * (U * V * C) + k[None, :], mask=mask_NK, other=0.0)
        if U * V == 1:
            c = k
            inside = is_pixel[:, None] & (k < C)[None, :]
            if PADDING > 0:
                inside = inside & ((y >= 0) & (y < Y) & (column >= 0) & (column < X))[:, None]
            at = (corner * pixel_stride)[:, None] + k[None, :]
        elif C % INPUTS == 0:  # one place of the window a step
            u, v = begin // C // V, begin // C % V
            c = k % C
            inside = is_pixel & (y + u >= 0) & (y + u < Y) & (column + v >= 0) & (column + v < X)
            inside = inside[:, None]
            at = ((corner + u * X + v) * pixel_stride)[:, None] + (begin % C + ks)[None, :]
        else:
            u, v, c = k // C // V, k // C % V, k % C
            row, col = y[:, None] + u[None, :], column[:, None] + v[None, :]
            inside = is_pixel[:, None] & (k < U * V * C)[None, :]
            inside = inside & (row >= 0) & (row < Y) & (col >= 0) & (col < X)
            at = (corner[:, None] + (u * X + v)[None, :]) * pixel_stride + c[None, :]
        a_MK = tl.load(x + at, mask=inside, other=0.0)
        if gate is not None:
            gate_at = gate + image[:, None] * C + c[None, :]
            gates_MK = tl.load(gate_at, mask=is_pixel[:, None] & (k < U * V * C)[None, :], other=0.0)
            a_MK = (a_MK.to(tl.float32) * gates_MK.to(tl.float32)).to(x.dtype.element_ty)
        sum_MN = tl.dot(a_MK, weight_NK.T, sum_MN, input_precision=PRECISION)
    if SPLITS == 1:
        _finish(sum_MN, bias, residual, out, pixels, N, NAME, PIXELS, OUTPUTS)
    else:
        total_MN, last = all_splits(sum_MN, partial, counters, PIXELS, OUTPUTS, SPLITS)
        if last:
            _finish(total_MN, bias, residual, out, pixels, N, NAME, PIXELS, OUTPUTS)


def conv2d_activation(
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor | None,
    gate_BC: Tensor | None,
    residual_BYXO: Tensor | None,
    stride: int,
    padding: int,
    groups: int,
    name: str,
) -> Tensor:
    o_BYXO = x_BYXC.new_empty(output_shape(x_BYXC, weight_OUVI, stride, padding, groups))
    if o_BYXO.numel() == 0:
        return o_BYXO
    outputs, height, width, channels = weight_OUVI.shape
    pixels, processors = o_BYXO.numel() // outputs, multiprocessors(x_BYXC.device)
    tile = tile_of(pixels, outputs, height * width, channels, x_BYXC.element_size(), processors)
    tiles = _count(pixels, outputs, tile)
    partial = counters = None
    if tile.splits > 1:
        size = tile.splits * tiles * tile.pixels * tile.outputs
        partial = x_BYXC.new_empty(size, dtype=torch.float32)
        counters = zeroed(tiles, x_BYXC.device)
    _convolve[(tiles, tile.splits)](
        x_BYXC, weight_OUVI, bias_O, gate_BC, residual_BYXO, o_BYXO, partial, counters, pixels,
        x_BYXC.stride(2), *x_BYXC.shape[1:3], *o_BYXO.shape[1:3], C=channels, N=outputs, U=height, V=width,
        STRIDE=stride, PADDING=padding, NAME=name, PIXELS=tile.pixels, OUTPUTS=tile.outputs,
        INPUTS=tile.inputs, SPLITS=tile.splits, STAGES=tile.stages,
        PRECISION="tf32x3" if x_BYXC.dtype == torch.float32 else None,
        num_warps=tile.warps, **overlap(x_BYXC.device),
    )  # fmt: skip
    return o_BYXO
