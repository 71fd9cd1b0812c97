"""linear in Triton for 1 to 32 rows, where a product is a walk over the weight at the speed of memory.

    y[t, n] = sum_s p[s, n, t] + bias[n],   p[s, n, t] = sum_{k of split s} weight[n, k] x[t, k]

A program owns a tile of outputs and one split of the inputs. The tensor cores multiply its weights, many
tiles ahead of which are on their way to shared memory; rows are padded to what they multiply. With several
splits a program leaves its p in float32, and the one that arrives last at a tile adds them, in the order of s
whoever it is: repeated calls agree bitwise. y is rounded once.

Nothing of a weight depends on the kernel before, so its first tiles are on their way to L2 while that one
still runs (programmatic dependent launch).

T rows · K inputs · N outputs.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

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
# 48 to 64 KB on their way (tiles of 16 KB), and two programs fit in the 227 KB of a processor. Each reads x
# from L2, rows / outputs times as many bytes as of its weight: tiles grow with the rows.
# Chosen by thought, not measured on a GPU yet (benchmarks/sweeps/linear.py measures).
NARROW = Tile(outputs=32, inputs=256, splits=1, stages=5, warps=4, ahead=4)  # 4096 outputs fill it unsplit
MIDDLE = Tile(outputs=64, inputs=128, splits=1, stages=5, warps=4, ahead=4)  # the smallest that wgmma takes
WIDE = Tile(outputs=128, inputs=64, splits=1, stages=5, warps=4, ahead=4)
NARROW_ROWS, MIDDLE_ROWS = 8, 16
FULL = 0.9  # of the processors with a program: 128 of 132 are as fast as all, memory is what they share
MOST_SPLITS = 8  # one program adds them up, alone
STEPS_OF_A_SPLIT = 4  # at least: fewer would only fill the stages


def unsupported(kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> str | None:
    count = x_TK.numel() // max(1, x_TK.shape[-1])
    if count > MOST_ROWS:
        return f"serves up to {MOST_ROWS} rows, not {count}"
    if weight_NK.stride(-1) != 1:
        return "needs weights with a contiguous last dimension"
    return checks.not_half(x_TK, weight_NK, *(() if bias_N is None else (bias_N,)))


@triton.jit
def _ask_for(weight, tile, first, K, N, weight_stride, OUTPUTS: tl.constexpr, COUNT: tl.constexpr,
             PIECES: tl.constexpr):  # fmt: skip
    """Ask COUNT inputs from `first` on of every output of a tile into L2, each in PIECES, one a thread."""
    piece = tl.arange(0, OUTPUTS * PIECES)
    k = first + piece // OUTPUTS * (COUNT // PIECES)
    n = tl.minimum(tile * OUTPUTS + piece % OUTPUTS, N - 1)
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
def _finish(sum_NT, bias, y, n, t, T, N):
    if bias is not None:
        sum_NT += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    y_at = y + t[None, :] * N + n[:, None]
    tl.store(y_at, sum_NT.to(y.dtype.element_ty), mask=(t < T)[None, :] & (n < N)[:, None])


@triton.jit(do_not_specialize=["T", "steps", "inner"])
def _multiply(x, weight, bias, y, partial, counters, T, K, N, steps, inner, outer_stride, inner_stride,
              weight_stride, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
              SPLITS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr, OVERLAPS: tl.constexpr,
              AHEAD: tl.constexpr, PIECES: tl.constexpr):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    first = split * steps * INPUTS
    n, k, t = tile * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS), tl.arange(0, ROWS)
    # Outputs past the end read the last one's weights and write nothing: no mask on the way of the weight.
    # evict_first: a weight is read once a step. Triton 3.7 drops the hint where it copies asynchronously.
    weight_at = weight + tl.minimum(n, N - 1).to(tl.int64)[:, None] * weight_stride + (first + k)[None, :]
    if OVERLAPS:
        gdc_launch_dependents()
        if AHEAD > 0:
            _ask_for(weight, tile, first, K, N, weight_stride, OUTPUTS, AHEAD * INPUTS, PIECES)
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
    if SPLITS == 1:
        _finish(sum_NT, bias, y, n, t, T, N)
    else:
        size: tl.constexpr = OUTPUTS * ROWS
        part_at = partial + tile * SPLITS * size + tl.arange(0, OUTPUTS)[:, None] * ROWS + t[None, :]
        tl.store(part_at + split * size, sum_NT)  # padded rows are 0
        if is_last(counters + tile, SPLITS):
            total_NT = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for s in tl.static_range(SPLITS):
                total_NT += tl.load(part_at + s * size, cache_modifier=".cg")
            _finish(total_NT, bias, y, n, t, T, N)


def tile_of(rows: int, inputs: int, outputs: int, processors: int) -> Tile:
    """The tile for a call: fewest splits that give nearly every processor a program."""
    tile = NARROW if rows <= NARROW_ROWS else MIDDLE if rows <= MIDDLE_ROWS else WIDE
    tile = tile._replace(inputs=max(SMALLEST_DOT, min(tile.inputs, power_of_two(inputs))))
    tiles, steps = ceil_div(outputs, tile.outputs), ceil_div(inputs, tile.inputs)
    wanted = ceil_div(int(FULL * processors), tiles)
    splits = max(1, min(wanted, MOST_SPLITS, steps // STEPS_OF_A_SPLIT))
    return tile._replace(splits=splits)


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    rows = x_TK.numel() // max(1, x_TK.shape[-1])
    outputs, inputs = weight_NK.shape
    return launch(x_TK, weight_NK, bias_N, tile_of(rows, inputs, outputs, multiprocessors(x_TK.device)))


def launch(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, tile: Tile) -> Tensor:
    """linear with tiles of the caller's choice."""
    outputs, inputs = weight_NK.shape
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], outputs))
    if y_TN.numel() == 0:
        return y_TN
    x = rows_of(x_TK)
    rows, device = max(SMALLEST_DOT, power_of_two(x.count)), x_TK.device
    tiles, steps = ceil_div(outputs, tile.outputs), ceil_div(inputs, tile.inputs * tile.splits)
    # Of the caching allocator: in a capture from the graph's pool, else given back in stream order.
    partial = counters = None
    if tile.splits > 1:
        partial = x_TK.new_empty(tile.splits * tiles * tile.outputs * rows, dtype=torch.float32)
        counters = zeroed(tiles, device)
    askable = inputs % VECTOR == 0 and not checks.not_aligned(weight_NK)
    _multiply[(tiles, tile.splits)](
        x.tensor, weight_NK, bias_N, y_TN, partial, counters, x.count, inputs, outputs, steps, x.inner,
        x.outer_stride, x.inner_stride, weight_NK.stride(0), ROWS=rows, OUTPUTS=tile.outputs,
        INPUTS=tile.inputs, SPLITS=tile.splits, STAGES=tile.stages,
        EVEN=inputs % (tile.inputs * tile.splits) == 0,
        AHEAD=tile.ahead if askable else 0, PIECES=max(1, 32 * tile.warps // tile.outputs),
        num_warps=tile.warps, **overlap(device),
    )  # fmt: skip
    return y_TN
