"""sample as two Triton kernels: the best score of every tile of the vocabulary, then the best tile of every
row.

Within a tile the largest l[v] - log E[v], l = logits / temperature, is found as the smallest E[v] exp(m -
l[v]) with m = max l: one exponential in place of a logarithm for each id. Rows at temperature 0 skip the
noise, so a greedy batch reads its logits at memory speed. Each Philox block serves four neighbouring ids.
top_k and top_p come as a threshold (narrowing.py), before the first kernel.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.launch import multiprocessors
from fastkernels.kernels.sample.narrowing import _key, threshold
from fastkernels.kernels.sample.threshold import Threshold

TILE = 2048  # 16 logits for each of 128 threads
SMALLEST_TILE = 1024
WARPS = 4
LOG_2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)


def unsupported(kernel: str, logits_BV: Tensor, *_: object) -> str | None:
    if logits_BV.dtype != torch.float32:
        return f"serves float32 logits, not {logits_BV.dtype}"
    return None if logits_BV.stride(-1) == 1 else "needs a contiguous last dimension"


@triton.jit
def _exponential(seed, position, tile_start, TILE: tl.constexpr):
    """E of TILE ids from `tile_start`, a multiple of 4."""
    group = (tile_start // 4 + tl.arange(0, TILE // 4)).to(tl.uint32)
    low = (group * 0 + (position & 0xFFFFFFFF).to(tl.uint32)).to(tl.uint32)
    high = (group * 0 + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)).to(tl.uint32)
    x0, x1, x2, x3 = tl.philox(seed, group, low, high, group * 0)
    # join appends an axis: [[x0, x1], [x2, x3]] for each group, in order once flat.
    words = tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), [TILE])
    w = tl.minimum(words.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10, 0.99999994)
    # 1 - w rounds small w away, and the hardware's logarithm is inexact near 1: there, six terms of -log(1 -
    # w).
    small = 0.2 + w * (0.16666667 + w * 0.14285715)
    small = w * (1.0 + w * (0.5 + w * (0.33333334 + w * (0.25 + w * small))))
    return tl.where(w < 0.0625, small, tl.log2(1.0 - w) * -LOG_2)


@triton.jit
def _highest(score, index, nowhere):
    """The highest score and the lowest index that has it: two plain reductions, cheaper than one of pairs."""
    top = tl.max(score, 0)
    return top, tl.min(tl.where(score == top, index, nowhere), 0)


@triton.jit
def _best_of_tile(logits, temperature, last_logit, last_id, seeds, positions, tile_score, tile_index, V,
                  first, row_stride, num_tiles, THRESHOLD: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    v = tile * TILE + tl.arange(0, TILE)
    inside = v < V
    logit = tl.load(logits + row * row_stride + v, mask=inside, other=float("-inf"))
    heat = tl.load(temperature + row)
    if heat == 0:
        top, index = _highest(logit, v, V)
    else:
        # Finite even in a tile of nothing but -inf, whose race then has no winner: all its times are inf.
        cold = tl.maximum(tl.max(logit, 0), -1e30)
        time = _exponential(tl.load(seeds + row), tl.load(positions + row), first + tile * TILE, TILE)
        time = tl.where(inside, time * tl.exp2((cold - logit) * (LOG2_E / heat)), float("inf"))
        if THRESHOLD:
            last = tl.load(last_logit + row)
            allowed = (logit > last) | ((logit == last) & (v <= tl.load(last_id + row)))
            time = tl.where(allowed, time, float("inf"))
        soonest, index = _highest(-time, v, V)
        top = cold / heat - tl.log(-soonest)
    tl.store(tile_score + row * num_tiles + tile, top)
    tl.store(tile_index + row * num_tiles + tile, index)


@triton.jit
def _best_of_row(tile_score, tile_index, ids, V, first, num_tiles, KEYS: tl.constexpr, SLOTS: tl.constexpr):
    row, slot = tl.program_id(0).to(tl.int64), tl.arange(0, SLOTS)
    inside = slot < num_tiles
    score = tl.load(tile_score + row * num_tiles + slot, mask=inside, other=float("-inf"))
    index = tl.load(tile_index + row * num_tiles + slot, mask=inside, other=V)
    top, best = _highest(score, index, V)
    # Of NaN there is no highest; the id must stay one of the vocabulary's.
    best = tl.minimum(best, V - 1).to(tl.int64)
    if KEYS:
        best = (_key(top).to(tl.int64) << 32) + (0x7FFFFFFF - first - best)
    tl.store(ids + row, best)


def sample(
    logits_BV: Tensor,
    temperature_B: Tensor,
    top_k_B: Tensor | None,
    top_p_B: Tensor | None,
    seeds_B: Tensor,
    positions_B: Tensor,
) -> Tensor:
    last = None
    if len(logits_BV) and (top_k_B is not None or top_p_B is not None):
        last = threshold(logits_BV, temperature_B, top_k_B, top_p_B)
    return _best(logits_BV, temperature_B, seeds_B, positions_B, last)


def sample_part(
    logits_BV: Tensor, temperature_B: Tensor, seeds_B: Tensor, positions_B: Tensor, first: int
) -> Tensor:
    return _best(logits_BV, temperature_B, seeds_B, positions_B, None, first)


def _best(
    logits_BV: Tensor,
    temperature_B: Tensor,
    seeds_B: Tensor,
    positions_B: Tensor,
    last: Threshold | None,
    first: int | None = None,
) -> Tensor:
    """Of each row the best id, or, where the ids begin with `first`, its key."""
    batch, vocabulary = logits_BV.shape
    ids_B = torch.empty(batch, dtype=torch.int64, device=logits_BV.device)
    if batch == 0:
        return ids_B
    few = batch * triton.cdiv(vocabulary, TILE) < 4 * multiprocessors(logits_BV.device)
    tile = SMALLEST_TILE if few else TILE
    num_tiles = triton.cdiv(vocabulary, tile)
    tile_score = torch.empty((batch, num_tiles), dtype=torch.float32, device=logits_BV.device)
    tile_index = torch.empty((batch, num_tiles), dtype=torch.int32, device=logits_BV.device)
    _best_of_tile[(num_tiles, batch)](
        logits_BV, temperature_B, last.logit_B if last else temperature_B, last.id_B if last else seeds_B,
        seeds_B, positions_B, tile_score, tile_index, vocabulary, first or 0, logits_BV.stride(0), num_tiles,
        THRESHOLD=last is not None, TILE=tile, num_warps=WARPS,
    )  # fmt: skip
    _best_of_row[(batch,)](
        tile_score, tile_index, ids_B, vocabulary, first or 0, num_tiles, KEYS=first is not None,
        SLOTS=triton.next_power_of_2(num_tiles), num_warps=1,
    )  # fmt: skip
    return ids_B
