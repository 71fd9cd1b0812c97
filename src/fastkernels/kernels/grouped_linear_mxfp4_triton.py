"""grouped_linear_mxfp4 in Triton: tiles of the experts' rows as in grouped_linear_triton.py, weights expanded
in registers (low_bit_dequant_triton.py).

A program has TILE_N outputs of one expert for up to TILE_M of its slots. The weights are the left factor of
the product: the tensor cores take them from the registers in which they were expanded, and few slots waste
columns of the right factor, not rows of 64. Gate and what it multiplies are neighbouring outputs, so with
GATED the program that has both writes the activation.

With ALONE every slot has an expert of its own, the one that `order` names for it: a single token, whose
experts differ, needs no alignment. With a `sum` the last of the programs with the same outputs adds up the
slots, in their order whoever it is.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.arrival import is_last
from fastkernels.kernels.clamped_glu_triton import gated
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.grouped_linear_triton import MOST_EXPERTS, most_row_tiles
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.kernels.low_bit_dequant_triton import DTYPES, UNIT, expanded, words
from fastkernels.kernels.overlap import follow, overlap

TL_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Tile(NamedTuple):
    """Slots, outputs and inputs of a step (`k` halves for float32). `together`: tiles of slots that run side
    by side, so that they share weights in L2. `assembly`: how weights are expanded where it is possible."""

    m: int
    n: int
    k: int
    together: int
    num_warps: int
    num_stages: int
    assembly: bool = True


# By slots of an expert on average. The first was the best of 54 on an H200 for 32 tokens of gpt-oss-20b
# (benchmarks/sweeps/experts.py): 267 us for a layer's experts, 641 with steps of 256 inputs, which do not
# divide its 2,880. For a single token all tiles of 64 outputs were within 6 %; its steps took 13 % less
# without assembly, in another run. The second is not measured. The last two were the fastest of six for 1,024
# and 8,192 tokens: 0.83 and 3.92 ms for both products. Do not take (128, 128, 64) by eight warps: with the
# activation and assembly a few results in 100,000 were NaN, others in every call. By four warps, without
# assembly, or in one stage none was. Why is not known.
ALONE = Tile(16, 64, 256, 1, 4, 4, assembly=False)
TILES = (
    (16, Tile(16, 64, 64, 1, 4, 3)),
    (64, Tile(64, 128, 128, 4, 8, 3)),
    (256, Tile(128, 128, 64, 8, 4, 3)),
    (None, Tile(256, 128, 64, 8, 8, 3)),
)


def unsupported(
    kernel: str,
    x_RK: Tensor,
    blocks_ENGB: Tensor,
    scales_ENG: Tensor,
    bias_EN: Tensor,
    order_S: Tensor,
    starts_E1: Tensor,
    slot_weights_S: Tensor | None = None,
) -> str | None:
    return not_served(x_RK, blocks_ENGB, scales_ENG, bias_EN)


def not_served(x_RK: Tensor, blocks_ENGB: Tensor, scales_ENG: Tensor, bias_EN: Tensor) -> str | None:
    """Why these weights, or rows that they multiply, are not served."""
    if x_RK.dtype not in DTYPES:
        return f"serves bfloat16, float16 and float32, not {str(x_RK.dtype).removeprefix('torch.')}"
    if blocks_ENGB.shape[0] > MOST_EXPERTS:
        return f"serves up to {MOST_EXPERTS} experts, not {blocks_ENGB.shape[0]}"
    if x_RK.stride(-1) != 1 or not (
        blocks_ENGB.is_contiguous() and scales_ENG.is_contiguous() and bias_EN.is_contiguous()
    ):
        return "needs contiguous weights and rows"
    return checks.not_alike(x_RK, bias_EN)


@triton.jit(do_not_specialize=["row_tiles"])
def _multiply(x, word, scales, bias, order, starts, slot_weights, y, sum, counters, row_tiles, x_stride,
              scaled_back, alpha, limit, R: tl.constexpr, E: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
              WEIGHTED: tl.constexpr, GATED: tl.constexpr, ALONE: tl.constexpr, DTYPE: tl.constexpr,
              UNIT: tl.constexpr, EXPERTS: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
              TILE_K: tl.constexpr, TOGETHER: tl.constexpr, STAGES: tl.constexpr,
              ASSEMBLY: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    # Programs that run together take TOGETHER tiles of slots and then the next outputs.
    program = tl.program_id(0)
    column_tiles: tl.constexpr = (N + TILE_N - 1) // TILE_N
    first_row_tile = program // (TOGETHER * column_tiles) * TOGETHER
    width = tl.minimum(row_tiles - first_row_tile, TOGETHER)
    inside = program % (TOGETHER * column_tiles)
    row_tile, column_tile = first_row_tile + inside % width, inside // width

    m = tl.arange(0, TILE_M)
    if ALONE:
        expert = tl.load(order + row_tile)
        real = m == 0
        slot = (row_tile + tl.zeros([TILE_M], tl.int32)).to(tl.int64)
    else:
        e = tl.arange(0, EXPERTS)
        begins = tl.load(starts + e, mask=e < E, other=0)
        ends = tl.load(starts + e + 1, mask=e < E, other=0)
        tiles = tl.cdiv(ends - begins, TILE_M)
        tile_ends = tl.cumsum(tiles, axis=0)
        if row_tile >= tl.sum(tiles, axis=0):
            return
        expert = tl.sum((tile_ends <= row_tile).to(tl.int32), axis=0)
        mine = e == expert
        begin, end = tl.sum(tl.where(mine, begins, 0), axis=0), tl.sum(tl.where(mine, ends, 0), axis=0)
        place = begin + (row_tile - tl.sum(tl.where(mine, tile_ends - tiles, 0), axis=0)) * TILE_M + m
        real = place < end
        slot = tl.load(order + place, mask=real, other=0).to(tl.int64)

    WORDS: tl.constexpr = TILE_K // 8
    GROUPS: tl.constexpr = TILE_K // 32
    n, k = column_tile * TILE_N + tl.arange(0, TILE_N), tl.arange(0, TILE_K)
    w, g = tl.arange(0, WORDS), tl.arange(0, GROUPS)
    # Past the end the last output's weights are read again, and nothing is written.
    row = expert.to(tl.int64) * N + tl.minimum(n, N - 1)
    word_at = word + row[:, None] * (K // 8) + w[None, :]
    scale_at = scales + row[:, None] * (K // 32) + g[None, :]
    x_at = x + (slot // R)[None, :] * x_stride + k[:, None]
    total = tl.zeros([TILE_N, TILE_M], tl.float32)
    for start in tl.range(0, K, TILE_K, num_stages=STAGES):
        left = K - start
        if K % TILE_K == 0:
            words_NW = tl.load(word_at + start // 8)
            scale_NG = tl.load(scale_at + start // 32)
            x_KM = tl.load(x_at + start, mask=real[None, :], other=0.0)
        else:
            words_NW = tl.load(word_at + start // 8, mask=(w < left // 8)[None, :], other=0)
            scale_NG = tl.load(scale_at + start // 32, mask=(g < left // 32)[None, :], other=0)
            x_KM = tl.load(x_at + start, mask=real[None, :] & (k < left)[:, None], other=0.0)
        total = tl.dot(
            expanded(words_NW, scale_NG, DTYPE, UNIT, ASSEMBLY), x_KM, total, input_precision="ieee"
        )

    total = total * scaled_back + tl.load(bias + row).to(tl.float32)[:, None]
    if WEIGHTED:
        total *= tl.load(slot_weights + slot, mask=real, other=0.0)[None, :]
    result = total.to(y.dtype.element_ty)
    if GATED:
        # Rounded before the activation, as the product alone is.
        pairs = tl.reshape(result.to(tl.float32), [TILE_N // 2, 2, TILE_M])
        gate, up = tl.split(tl.permute(pairs, (0, 2, 1)))
        f = column_tile * (TILE_N // 2) + tl.arange(0, TILE_N // 2)
        at = y + slot[None, :] * (N // 2) + f[:, None]
        tl.store(
            at,
            gated(gate, up, alpha, limit).to(y.dtype.element_ty),
            mask=real[None, :] & (f < N // 2)[:, None],
        )
    else:
        tl.store(y + slot[None, :] * N + n[:, None], result, mask=real[None, :] & (n < N)[:, None])
    # Two conditions: Triton drops what an `if` of a missing argument holds, and counts nothing.
    if sum is not None:  # noqa: SIM102
        if is_last(counters + column_tile, row_tiles):
            sum_N = tl.zeros([TILE_N], tl.float32)
            for s in range(row_tiles):
                sum_N += tl.load(y + s * N + n, mask=n < N, other=0.0, cache_modifier=".cg").to(tl.float32)
            tl.store(sum + n, sum_N.to(y.dtype.element_ty), mask=n < N)


def grouped_linear_mxfp4(
    x_RK: Tensor,
    blocks_ENGB: Tensor,
    scales_ENG: Tensor,
    bias_EN: Tensor,
    order_S: Tensor,
    starts_E1: Tensor,
    slot_weights_S: Tensor | None,
) -> Tensor:
    return launch(x_RK, blocks_ENGB, scales_ENG, bias_EN, order_S, starts_E1, slot_weights_S)


def launch(
    x_RK: Tensor,
    blocks_ENGB: Tensor,
    scales_ENG: Tensor,
    bias_EN: Tensor,
    order_S: Tensor,
    starts_E1: Tensor | None,
    slot_weights_S: Tensor | None = None,
    activation: tuple[float, float] | None = None,
    sums: bool = False,
) -> Tensor:
    """[S, N], or [S, N / 2] with an activation (alpha, limit). Without starts the order is one of experts, a
    different one for each slot; then with `sums` [1, N]."""
    slots, (experts, outputs) = order_S.shape[0], blocks_ENGB.shape[:2]
    inputs = 32 * scales_ENG.shape[-1]
    y_SN = x_RK.new_empty((slots, outputs // 2 if activation else outputs))
    if y_SN.numel() == 0:
        return y_SN
    tile = tile_for(slots, experts, is_alone=starts_E1 is None)
    tile_n = min(tile.n, max(16, power_of_two(outputs)))
    tile_k = min(tile.k * 2 // x_RK.element_size(), max(32, power_of_two(inputs)))
    row_tiles = most_row_tiles(slots, experts, tile.m) if starts_E1 is not None else slots
    alpha, limit = activation or (0.0, 0.0)
    unit, column_tiles = UNIT[x_RK.dtype], ceil_div(outputs, tile_n)
    sum_1N = counters = None
    if sums:
        sum_1N, counters = x_RK.new_empty((1, outputs)), zeroed(column_tiles, x_RK.device)
    _multiply[(row_tiles * column_tiles,)](
        x_RK, words(blocks_ENGB), scales_ENG, bias_EN, order_S, starts_E1, slot_weights_S, y_SN, sum_1N,
        counters, row_tiles, x_RK.stride(0), 2.0**unit, alpha, limit,
        R=slots // x_RK.shape[0], E=experts, N=outputs, K=inputs,
        WEIGHTED=slot_weights_S is not None, GATED=activation is not None, ALONE=starts_E1 is None,
        DTYPE=TL_DTYPES[x_RK.dtype], UNIT=unit, EXPERTS=power_of_two(experts), TILE_M=tile.m, TILE_N=tile_n,
        TILE_K=tile_k, TOGETHER=tile.together, STAGES=tile.num_stages, num_warps=tile.num_warps,
        ASSEMBLY=tile.assembly and x_RK.is_cuda, **overlap(x_RK.device),
    )  # fmt: skip
    return y_SN if sum_1N is None else sum_1N


def tile_for(slots: int, experts: int, is_alone: bool) -> Tile:
    """The tile for this many slots of an expert on average, or for slots with an expert each."""
    if is_alone:
        return ALONE
    average = ceil_div(slots, experts)
    return next(tile for most, tile in TILES if most is None or average <= most)
