"""The product of 1 to 32 rows with a weight on tensor cores, at the speed of memory: what `linear` and
`linear_glu` share.

    sum[n, t] = sum_s p[s, n, t],   p[s, n, t] = sum_{k of split s} weight[n, k] x[t, k]

A program owns a tile of the weight's rows and one split of the inputs. The tensor cores multiply its weights,
many tiles ahead of which are on their way to shared memory; rows of x are padded to what they multiply. With
several splits a program leaves its p in float32, and the one that arrives last at a tile adds them, in the
order of s whoever it is: repeated calls agree bitwise.

A packed weight is several parts of N / PARTS rows: a tile has equally many of each, so that one program has
what belongs together.

Nothing of a weight depends on the kernel before, so its first tiles are on their way to L2 while that one
still runs (programmatic dependent launch).

T rows of x · K inputs · N rows of the weight.
"""

# Triton types a device function's arguments as what a launch passes.
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from fastkernels.kernels import checks
from fastkernels.kernels.arrival import is_last
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.launch import ceil_div, multiprocessors, power_of_two, rows_of
from fastkernels.kernels.overlap import overlap

MOST_ROWS = 32
SMALLEST_DOT = 16
VECTOR = 8  # 16-bit elements of 16 bytes, the unit of a prefetch


class Tile(NamedTuple):
    """What one program multiplies in a step, `outputs` rows of the weight by `inputs` columns, and how.

    splits: programs that share the inputs of an output · stages: tiles of shared memory, one multiplied while
    the others arrive · ahead: tiles asked into L2 before the kernel ahead has ended.
    """

    outputs: int
    inputs: int
    splits: int
    stages: int
    warps: int
    ahead: int


# 4.3 TB/s at about 1 us of latency are 33 KB on their way to each of 132 processors. A program of these has
# 48 to 64 KB on their way, and two programs fit in the 227 KB of a processor. Each reads x from L2, rows /
# outputs times as many bytes as of its weight. The fastest of benchmarks/sweeps/linear.py (docs/record).
TALL = Tile(outputs=128, inputs=128, splits=1, stages=3, warps=4, ahead=4)
WIDE = Tile(outputs=128, inputs=64, splits=1, stages=5, warps=4, ahead=4)  # of more rows
SMALL = Tile(outputs=64, inputs=128, splits=1, stages=4, warps=4, ahead=4)  # the smallest that wgmma takes
TALL_ROWS = 16
# Of SMALL where no processor needs two programs: more than half of its memory. With less, some processors
# are given two and others none while the kernel ahead still runs: 131 us of a step of 32 rows (4.69 ms).
ALONE_STAGES = 6
FULL = 0.9  # of the processors with a program: 128 of 132 are as fast as all, memory is what they share
MOST_SPLITS = 8  # one program adds them up, alone
STEPS_OF_A_SPLIT = 4  # at least: fewer would only fill the stages


def tile_for(x_TK: Tensor, weight_NK: Tensor) -> Tile:
    outputs, inputs = weight_NK.shape
    return tile_of(_rows(x_TK), inputs, outputs, multiprocessors(x_TK.device))


def tile_of(rows: int, inputs: int, outputs: int, processors: int) -> Tile:
    """The tile for a call: a large one where they are enough for nearly every processor, else a small one
    and the fewest splits that are, as deep as keeps a second program off a processor where each has one."""
    wanted = int(FULL * processors)
    tile = TALL if rows <= TALL_ROWS else WIDE
    if ceil_div(outputs, tile.outputs) < wanted:
        tile = SMALL
    tile = tile._replace(inputs=max(SMALLEST_DOT, min(tile.inputs, power_of_two(inputs))))
    tiles, steps = ceil_div(outputs, tile.outputs), ceil_div(inputs, tile.inputs)
    splits = max(1, min(ceil_div(wanted, tiles), MOST_SPLITS, steps // STEPS_OF_A_SPLIT))
    is_alone = tile.outputs == SMALL.outputs and tiles * splits <= processors
    return tile._replace(splits=splits, stages=ALONE_STAGES if is_alone else tile.stages)


def unsupported(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> str | None:
    if _rows(x_TK) > MOST_ROWS:
        return f"serves up to {MOST_ROWS} rows, not {_rows(x_TK)}"
    if weight_NK.stride(-1) != 1:
        return "needs weights with a contiguous last dimension"
    return checks.not_half(x_TK, weight_NK, *(() if bias_N is None else (bias_N,)))


def _rows(x_TK: Tensor) -> int:
    return x_TK.numel() // max(1, x_TK.shape[-1])


@triton.jit
def weight_row(tile, i, N, OUTPUTS: tl.constexpr, PARTS: tl.constexpr):
    """The i-th of a tile's rows of the weight; past the end of a part, its last."""
    each: tl.constexpr = OUTPUTS // PARTS
    return i // each * (N // PARTS) + tl.minimum(tile * each + i % each, N // PARTS - 1)


@triton.jit
def _ask_for(weight, tile, first, K, N, weight_stride, OUTPUTS: tl.constexpr, PARTS: tl.constexpr,
             COUNT: tl.constexpr, PIECES: tl.constexpr):  # fmt: skip
    """Ask COUNT inputs from `first` on of every row of a tile into L2, each in PIECES, one a thread."""
    piece = tl.arange(0, OUTPUTS * PIECES)
    k = first + piece // OUTPUTS * (COUNT // PIECES)
    n = weight_row(tile, piece % OUTPUTS, N, OUTPUTS, PARTS)
    at = (weight + n.to(tl.int64) * weight_stride + k).to(tl.int64)
    size = tl.minimum(K - k, COUNT // PIECES) * 2
    tl.inline_asm_elementwise(
        """{
        .reg .pred some;
        setp.gt.s32 some, $2, 0;
        @some cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r", [at, size], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def product(x, weight, T, K, N, steps, inner, outer_stride, inner_stride, weight_stride, ROWS: tl.constexpr,
            OUTPUTS: tl.constexpr, PARTS: tl.constexpr, INPUTS: tl.constexpr, STAGES: tl.constexpr,
            EVEN: tl.constexpr, OVERLAPS: tl.constexpr, AHEAD: tl.constexpr,
            PIECES: tl.constexpr):  # fmt: skip
    """[OUTPUTS, ROWS]: what this program's split adds to the sums of its tile; 0 in padded rows."""
    tile, first = tl.program_id(0), tl.program_id(1) * steps * INPUTS
    n, k, t = (
        weight_row(tile, tl.arange(0, OUTPUTS), N, OUTPUTS, PARTS),
        tl.arange(0, INPUTS),
        tl.arange(0, ROWS),
    )
    # Past the end the last row's weights are read again, and nothing is written: no mask on the weight's way.
    # evict_first: a weight is read once a step. Triton 3.7 drops the hint where it copies asynchronously.
    weight_at = weight + n.to(tl.int64)[:, None] * weight_stride + (first + k)[None, :]
    if OVERLAPS:
        gdc_launch_dependents()
        if AHEAD > 0:
            _ask_for(weight, tile, first, K, N, weight_stride, OUTPUTS, PARTS, AHEAD * INPUTS, PIECES)
        # Before x is read, and before anything is written that the kernel ahead may still read or write.
        gdc_wait()
    x_at = x + ((t // inner) * outer_stride + (t % inner) * inner_stride)[None, :] + (first + k)[:, None]
    real = (t < T)[None, :]
    sum_NT = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        at = step * INPUTS
        if EVEN:
            weight_NK = tl.load(weight_at + at, eviction_policy="evict_first")
            x_KT = tl.load(x_at + at, mask=real, other=0.0)
        else:
            left = k < K - first - at
            weight_NK = tl.load(weight_at + at, mask=left[None, :], other=0.0, eviction_policy="evict_first")
            x_KT = tl.load(x_at + at, mask=real & left[:, None], other=0.0)
        sum_NT = tl.dot(weight_NK, x_KT, sum_NT)
    return sum_NT


@triton.jit
def all_splits(sum_NT, partial, counters, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr):
    """The sum over splits and whether this program has it: the last of a tile does."""
    tile, split = tl.program_id(0), tl.program_id(1)
    size: tl.constexpr = OUTPUTS * ROWS
    part_at = partial + tile * SPLITS * size
    part_at += tl.arange(0, OUTPUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    tl.store(part_at + split * size, sum_NT)
    last = is_last(counters + tile, SPLITS)
    total_NT = tl.zeros([OUTPUTS, ROWS], tl.float32)
    if last:
        for s in tl.static_range(SPLITS):
            total_NT += tl.load(part_at + s * size, cache_modifier=".cg")
    return total_NT, last


def grid(outputs: int, tile: Tile) -> tuple[int, int]:
    return ceil_div(outputs, tile.outputs), tile.splits


def options(x_TK: Tensor, weight_NK: Tensor, tile: Tile) -> dict[str, Any]:
    """What launches of `product` have in common: arguments, memory for splits, constants, launch options."""
    outputs, inputs = weight_NK.shape
    x, device = rows_of(x_TK), x_TK.device
    rows, tiles = max(SMALLEST_DOT, power_of_two(x.count)), ceil_div(outputs, tile.outputs)
    # Of the caching allocator: in a capture from the graph's pool, else given back in stream order.
    partial = counters = None
    if tile.splits > 1:
        partial = x_TK.new_empty(tile.splits * tiles * tile.outputs * rows, dtype=torch.float32)
        counters = zeroed(tiles, device)
    askable = inputs % VECTOR == 0 and not checks.not_aligned(weight_NK)
    return {
        "x": x.tensor, "weight": weight_NK, "partial": partial, "counters": counters, "T": x.count,
        "K": inputs, "N": outputs, "steps": ceil_div(inputs, tile.inputs * tile.splits), "inner": x.inner,
        "outer_stride": x.outer_stride, "inner_stride": x.inner_stride, "weight_stride": weight_NK.stride(0),
        "ROWS": rows, "OUTPUTS": tile.outputs, "INPUTS": tile.inputs, "SPLITS": tile.splits,
        "STAGES": tile.stages, "EVEN": inputs % (tile.inputs * tile.splits) == 0,
        "AHEAD": tile.ahead if askable else 0, "PIECES": max(1, 32 * tile.warps // tile.outputs),
        "num_warps": tile.warps, **overlap(device),
    }  # fmt: skip
