"""bitnet_linear in Triton for one row, on CUDA cores: one launch that makes the codes, too.

    sum[n] = sum_k (T[n, k] + 1) code[k] - sum_k code[k]

A program owns a few packed rows and all inputs. Its first tiles of the weight are on their way before x is
read. It finds the largest |x| and, tile by tile, makes words of four codes. A word of the weight holds four
inputs of four outputs: four instructions multiply it with a word of codes, four pairs of bytes each (dp4a).

K inputs · R packed rows · W words of a tile.
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
from torch.nn import Parameter
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from fastkernels.kernels import checks
from fastkernels.kernels.bitnet_linear_triton import magnitude, nearest, output_of, scale_of, starts_of
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_of
from fastkernels.kernels.overlap import overlap, overlapping
from fastkernels.kernels.ternary import PER_BYTE

WORD = 4  # inputs of a word


class Tile(NamedTuple):
    """What a program multiplies in a step: `words` of `rows` packed rows. Those of three steps are on their
    way."""

    rows: int
    words: int
    warps: int


# Not measured on a GPU yet. Every program makes all codes for itself: for four packed rows that costs less
# than half of what multiplying them does.
TILE = Tile(rows=4, words=256, warps=4)


def unsupported(
    kernel: str, x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]
) -> str | None:
    count = x_TK.numel() // max(1, x_TK.shape[-1])
    if count > 1:
        return f"serves one row, not {count}"
    if x_TK.shape[-1] % WORD:
        return f"needs inputs in multiples of {WORD}"
    if not weight_RK.is_contiguous() or weight_RK.data_ptr() % WORD:
        return "needs a contiguous weight of whole words"
    x = rows_of(x_TK).tensor
    if x.data_ptr() % (WORD * x.element_size()):
        return f"needs x at a multiple of {WORD} elements"
    return checks.not_half(x_TK)


@triton.jit
def _product(a, b, total, ASSEMBLY: tl.constexpr):
    """total + the products of the four bytes of a, unsigned, with those of b, signed."""
    if ASSEMBLY:
        total = tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        for i in tl.static_range(4):
            total += ((a >> (8 * i)) & 0xFF) * ((b << (24 - 8 * i)) >> 24)
    return total


@triton.jit
def _tile(at, word, words):
    # evict_first: a weight is read once a step.
    return tl.load(at + word[None, :], mask=(word < words)[None, :], other=0, eviction_policy="evict_first")


@triton.jit
def _code(four, i: tl.constexpr, scale, KIND: tl.constexpr):
    """The code of the i-th of four 16-bit floats in an int64, as the i-th byte of a word."""
    value = ((four >> (16 * i)) & 0xFFFF).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
    return (nearest(value * scale) & 0xFF) << (8 * i)


@triton.jit
def _codes(x, word, scale, words, KIND: tl.constexpr):
    """[W] words of four codes each."""
    four = tl.load(x + word, mask=word < words, other=0)
    low = _code(four, 0, scale, KIND) | _code(four, 1, scale, KIND)
    return low | _code(four, 2, scale, KIND) | _code(four, 3, scale, KIND)


@triton.jit
def _multiply(x, x_fours, weight, omega, y, row_stride, R, steps, STARTS: tl.constexpr, P: tl.constexpr,
              KIND: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
              ASSEMBLY: tl.constexpr, OVERLAPS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    r, w, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WORDS), tl.arange(0, WIDTH)
    # Past the end the last row is read again, and nothing is written.
    at = weight + tl.minimum(r, R - 1).to(tl.int64)[:, None] * row_stride
    if OVERLAPS:
        gdc_launch_dependents()
        if not EARLY:
            gdc_wait()
    packed = _tile(at, w, row_stride)
    next = _tile(at, w + WORDS, row_stride)
    after_next = _tile(at, w + 2 * WORDS, row_stride)
    if OVERLAPS and EARLY:
        # Before x is read, and before anything is written that the kernel ahead may still read or write.
        gdc_wait()
    value = tl.load(x + k, mask=k < row_stride * 4, other=0.0).to(tl.float32)
    scale = scale_of(tl.max(magnitude(value), axis=0).to(tl.float32, bitcast=True))
    total_0 = tl.zeros([ROWS, WORDS], tl.int32)
    total_1 = tl.zeros([ROWS, WORDS], tl.int32)
    total_2 = tl.zeros([ROWS, WORDS], tl.int32)
    total_3 = tl.zeros([ROWS, WORDS], tl.int32)
    too_much = tl.zeros([WORDS], tl.int32)
    for step in range(steps):
        word = step * WORDS + w
        then = _tile(at, word + 3 * WORDS, row_stride)
        code = _codes(x_fours, word, scale, row_stride, KIND)
        too_much = _product(tl.full([WORDS], 0x01010101, tl.int32), code, too_much, ASSEMBLY)
        codes = tl.broadcast_to(code[None, :], [ROWS, WORDS])
        total_0 = _product(packed & 0x03030303, codes, total_0, ASSEMBLY)
        total_1 = _product((packed >> 2) & 0x03030303, codes, total_1, ASSEMBLY)
        total_2 = _product((packed >> 4) & 0x03030303, codes, total_2, ASSEMBLY)
        total_3 = _product((packed >> 6) & 0x03030303, codes, total_3, ASSEMBLY)
        packed, next, after_next = next, after_next, then
    excess = tl.sum(too_much, axis=0)
    _store(tl.sum(total_0, axis=1) - excess, 0, r, R, scale, omega, y, STARTS, P)
    _store(tl.sum(total_1, axis=1) - excess, 1, r, R, scale, omega, y, STARTS, P)
    _store(tl.sum(total_2, axis=1) - excess, 2, r, R, scale, omega, y, STARTS, P)
    _store(tl.sum(total_3, axis=1) - excess, 3, r, R, scale, omega, y, STARTS, P)


@triton.jit
def _store(total, j, r, R, scale, omega, y, STARTS: tl.constexpr, P: tl.constexpr):
    n, factor = output_of(r, j, omega, STARTS, P)
    value = tl.div_rn(total.to(tl.float32), tl.broadcast_to(scale, total.shape)) * factor
    tl.store(y + n, value.to(y.dtype.element_ty), mask=r < R)


def bitnet_linear(x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]) -> Tensor:
    packed_rows, inputs = weight_RK.shape
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], PER_BYTE * packed_rows))
    if y_TN.numel() == 0:
        return y_TN
    x_K, device, words = rows_of(x_TK).tensor.reshape(-1), x_TK.device, inputs // WORD
    tile = TILE._replace(words=min(TILE.words, power_of_two(words)))
    _multiply[(ceil_div(packed_rows, tile.rows),)](
        x_K, x_K.view(torch.int64), weight_RK.detach().view(torch.int32), omega_P, y_TN, words, packed_rows,
        ceil_div(words, tile.words), STARTS=starts_of(sizes), P=len(sizes),
        KIND=tl.bfloat16 if x_TK.dtype == torch.bfloat16 else tl.float16, WIDTH=power_of_two(inputs),
        ROWS=tile.rows, WORDS=tile.words, ASSEMBLY=device.type != "cpu",
        EARLY=overlapping(device) and isinstance(weight_RK, Parameter), num_warps=tile.warps,
        enable_fp_fusion=False, **overlap(device),
    )  # fmt: skip
    return y_TN
