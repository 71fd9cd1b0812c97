"""bitnet_linear in Triton on tensor cores: one launch makes codes of the activations, one multiplies them.

    sum[n, t] = sum_k (T[n, k] + 1) code[t, k] - sum_k code[t, k]

A program of the product owns packed rows of the weight, each of which is four outputs, some tokens, and one
split of the inputs. It loads the packed bytes alone; their two-bit fields become operands of the tensor cores
in registers, as 0, 1 and 2, and what that adds to each sum is the sum of a token's codes. All sums are of
whole numbers, so splits add up to the same in any order.

T tokens · K inputs · R packed rows · P matrices packed together.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.arrival import is_last
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.launch import ceil_div, multiprocessors, power_of_two, rows_of, warps
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.ternary import LEAST, MOST_CODE, PER_BYTE

SMALLEST_DOT, SMALLEST_INPUTS = 16, 32  # of rows or tokens, and of inputs in bytes
LEAST_MAXIMUM, LARGEST_CODE = tl.constexpr(LEAST), tl.constexpr(MOST_CODE)
# Added to a float32 between -2^22 and 2^22 it leaves the whole number nearest to it, even at halves, in the
# lowest bits.
TO_WHOLE = tl.constexpr(12582912.0)
WHOLE_BITS = tl.constexpr(0x4B400000)
MOST_SPLITS = 8
STEPS_OF_A_SPLIT = 2  # at least


class Tile(NamedTuple):
    """What a program multiplies in a step: `rows` packed rows by `tokens` by `inputs` columns."""

    rows: int
    tokens: int
    inputs: int
    stages: int
    warps: int


# By the most tokens of a call. A few: small tiles of the weight, so that every processor has one. Many: 64
# packed rows are what the tensor cores of Hopper take at once, for each of four fields. Not measured on a GPU
# yet.
TILES = (
    (16, Tile(16, 16, 256, 5, 2)),
    (32, Tile(16, 32, 256, 4, 4)),
    (128, Tile(16, 64, 128, 4, 4)),
    (None, Tile(64, 128, 128, 3, 8)),
)


def unsupported(
    kernel: str, x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]
) -> str | None:
    if weight_RK.stride(-1) != 1:
        return "needs weights with a contiguous last dimension"
    return checks.not_float32_compute(x_TK)


@triton.jit
def scale_of(largest):
    """127 / max(largest, 1e-5), rounded correctly; NaN stays NaN."""
    least = tl.full(largest.shape, LEAST_MAXIMUM, tl.float32)
    divisor = tl.where(largest < least, least, largest)
    return tl.div_rn(tl.full(largest.shape, LARGEST_CODE, tl.float32), divisor)


@triton.jit
def magnitude(x):
    """|x| of float32 as an integer of the same order, in which NaN is the largest."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def nearest(x):
    """int32: float32 x, at most 127 in size, rounded to even at halves. The product that it is must not be
    fused with this addition: launches say enable_fp_fusion=False."""
    return (x + TO_WHOLE).to(tl.int32, bitcast=True) - WHOLE_BITS


@triton.jit
def output_of(r, j, omega, STARTS: tl.constexpr, P: tl.constexpr):
    """(output, its omega) of field j of packed rows r. Those of matrix p begin at STARTS[p]."""
    n, factor = r * 0, r.to(tl.float32) * 0.0
    for p in tl.static_range(P):
        is_here = (r >= STARTS[p]) & (r < STARTS[p + 1])
        here = 3 * STARTS[p] + r + j * (STARTS[p + 1] - STARTS[p])
        n = tl.where(is_here, here, n)
        factor = tl.where(is_here, tl.load(omega + p).to(tl.float32), factor)
    return n, factor


@triton.jit
def _quantise_rows(x, codes, scales, sums, inner, outer_stride, inner_stride, K: tl.constexpr,
                   WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, WIDTH)
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start + k, mask=k < K, other=0.0).to(tl.float32)
    largest = tl.max(magnitude(value), axis=0).to(tl.float32, bitcast=True)
    scale = scale_of(largest)
    code = nearest(value * scale).to(tl.int8)
    tl.store(codes + row * K + k, code, mask=k < K)
    tl.store(scales + row, scale)
    tl.store(sums + row, tl.sum(code.to(tl.int32), axis=0))


@triton.jit
def _field(packed, SHIFT: tl.constexpr, ASSEMBLY: tl.constexpr):
    """One of the two-bit fields of each byte, as int8; four bytes a time on a GPU."""
    if ASSEMBLY:
        field = tl.inline_asm_elementwise(
            f"{{ .reg .b32 moved; shr.b32 moved, $1, {SHIFT}; and.b32 $0, moved, 0x03030303; }}",
            "=r,r", [packed], dtype=tl.int8, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        field = ((packed >> SHIFT) & 3).to(tl.int8)
    return field


@triton.jit
def _store(total, j, r, t, T, R, scale, omega, y, STARTS: tl.constexpr, P: tl.constexpr):
    n, factor = output_of(r, j, omega, STARTS, P)
    value = tl.div_rn(total.to(tl.float32), tl.broadcast_to(scale[None, :], total.shape)) * factor[:, None]
    at = y + t.to(tl.int64)[None, :] * (4 * R) + n[:, None]
    tl.store(at, value.to(y.dtype.element_ty), mask=(r < R)[:, None] & (t < T)[None, :])


@triton.jit(do_not_specialize=["T", "steps"])
def _multiply(codes, scales, sums, weight, omega, y, partial, counters, T, K, R, steps, code_stride,
              weight_stride, STARTS: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
              INPUTS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
              ASSEMBLY: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    r, k = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, INPUTS)
    t = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    first = split * steps * INPUTS
    # Past the end the last row is read again, and nothing is written.
    w_at = weight + tl.minimum(r, R - 1).to(tl.int64)[:, None] * weight_stride + (first + k)[None, :]
    c_at = codes + t.to(tl.int64)[None, :] * code_stride + (first + k)[:, None]
    real = (t < T)[None, :]
    follow(OVERLAPS)
    total_0 = tl.zeros([ROWS, TOKENS], tl.int32)
    total_1 = tl.zeros([ROWS, TOKENS], tl.int32)
    total_2 = tl.zeros([ROWS, TOKENS], tl.int32)
    total_3 = tl.zeros([ROWS, TOKENS], tl.int32)
    for step in tl.range(0, steps, num_stages=STAGES):
        at = step * INPUTS
        if EVEN:
            packed = tl.load(w_at + at)
            code = tl.load(c_at + at, mask=real, other=0)
        else:
            left = k < K - first - at
            packed = tl.load(w_at + at, mask=left[None, :], other=0)
            code = tl.load(c_at + at, mask=real & left[:, None], other=0)
        total_0 = tl.dot(_field(packed, 0, ASSEMBLY), code, total_0, out_dtype=tl.int32)
        total_1 = tl.dot(_field(packed, 2, ASSEMBLY), code, total_1, out_dtype=tl.int32)
        total_2 = tl.dot(_field(packed, 4, ASSEMBLY), code, total_2, out_dtype=tl.int32)
        total_3 = tl.dot(_field(packed, 6, ASSEMBLY), code, total_3, out_dtype=tl.int32)
    done = True
    if SPLITS > 1:
        size: tl.constexpr = 4 * ROWS * TOKENS
        place = tl.arange(0, ROWS)[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :]
        part_at = partial + tile * SPLITS * size + place
        mine = part_at + split * size
        tl.store(mine, total_0)
        tl.store(mine + ROWS * TOKENS, total_1)
        tl.store(mine + 2 * ROWS * TOKENS, total_2)
        tl.store(mine + 3 * ROWS * TOKENS, total_3)
        done = is_last(counters + tile, SPLITS)
        if done:
            total_0 *= 0
            total_1 *= 0
            total_2 *= 0
            total_3 *= 0
            for s in tl.static_range(SPLITS):
                theirs = part_at + s * size
                total_0 += tl.load(theirs, cache_modifier=".cg")
                total_1 += tl.load(theirs + ROWS * TOKENS, cache_modifier=".cg")
                total_2 += tl.load(theirs + 2 * ROWS * TOKENS, cache_modifier=".cg")
                total_3 += tl.load(theirs + 3 * ROWS * TOKENS, cache_modifier=".cg")
    if done:
        scale = tl.load(scales + t, mask=t < T, other=1.0)
        too_much = tl.load(sums + t, mask=t < T, other=0)[None, :]
        _store(total_0 - too_much, 0, r, t, T, R, scale, omega, y, STARTS, P)
        _store(total_1 - too_much, 1, r, t, T, R, scale, omega, y, STARTS, P)
        _store(total_2 - too_much, 2, r, t, T, R, scale, omega, y, STARTS, P)
        _store(total_3 - too_much, 3, r, t, T, R, scale, omega, y, STARTS, P)


def bitnet_linear(x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]) -> Tensor:
    packed_rows, inputs = weight_RK.shape
    x, device = rows_of(x_TK), x_TK.device
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], PER_BYTE * packed_rows))
    if y_TN.numel() == 0:
        return y_TN
    codes_TK = x_TK.new_empty((x.count, inputs), dtype=torch.int8)
    scales_T = codes_TK.new_empty(x.count, dtype=torch.float32)
    sums_T = codes_TK.new_empty(x.count, dtype=torch.int32)
    width = power_of_two(inputs)
    _quantise_rows[(x.count,)](
        x.tensor, codes_TK, scales_T, sums_T, x.inner, x.outer_stride, x.inner_stride, K=inputs, WIDTH=width,
        enable_fp_fusion=False, **warps(width), **overlap(device),
    )  # fmt: skip
    tile = tile_for(x.count, inputs)
    tiles, token_tiles = ceil_div(packed_rows, tile.rows), ceil_div(x.count, tile.tokens)
    steps = ceil_div(inputs, tile.inputs)
    splits = splits_of(tiles, steps, multiprocessors(device)) if token_tiles == 1 else 1
    partial = counters = None
    if splits > 1:
        partial = codes_TK.new_empty(splits * tiles * PER_BYTE * tile.rows * tile.tokens, dtype=torch.int32)
        counters = zeroed(tiles, device)
    _multiply[(tiles, splits, token_tiles)](
        codes_TK, scales_T, sums_T, weight_RK, omega_P, y_TN, partial, counters, x.count, inputs, packed_rows,
        ceil_div(steps, splits), inputs, weight_RK.stride(0), STARTS=starts_of(sizes), P=len(sizes),
        ROWS=tile.rows, TOKENS=tile.tokens, INPUTS=tile.inputs, SPLITS=splits, STAGES=tile.stages,
        EVEN=inputs % (tile.inputs * splits) == 0, ASSEMBLY=device.type != "cpu", num_warps=tile.warps,
        **overlap(device),
    )  # fmt: skip
    return y_TN


def tile_for(tokens: int, inputs: int) -> Tile:
    tile = next(tile for most, tile in TILES if most is None or tokens <= most)
    return tile._replace(inputs=max(SMALLEST_INPUTS, min(tile.inputs, power_of_two(inputs))))


def splits_of(tiles: int, steps: int, processors: int) -> int:
    """Programs that share the inputs of an output: the fewest that give every processor two."""
    wanted = ceil_div(2 * processors, tiles)
    return max(1, min(wanted, MOST_SPLITS, steps // STEPS_OF_A_SPLIT))


def starts_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """The first packed row of each matrix, and the end."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size // PER_BYTE)
    return tuple(starts)
