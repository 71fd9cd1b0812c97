"""low_bit_dequant in Triton: words of eight codes, expanded in registers, as products of such weights do it.

    word      eight codes of four bits, the first one lowest; four words share a scale

A code's three bits of magnitude, put where a 16-bit float has its lowest exponent bits and its highest
mantissa bit, are that code times a power of two, 2^-126 for bfloat16 and 2^-14 for float16 (0.5 is a
subnormal number there): two codes of a word at once, without a table. The multiplication by the scale puts
the power right. Products leave a part of it, 2^UNIT, to their end: the scales themselves must be numbers of
the dtype.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.launch import ceil_div

WORDS_OF_A_SCALE = tl.constexpr(4)
CODES = 8  # of a word
SIGNS = tl.constexpr(-0x7FFF8000)  # 0x80008000
HIGH = tl.constexpr(-0x10000)  # 0xFFFF0000


def _assembly(shift: int, magnitudes: int, multiply: str) -> tl.constexpr:
    """The eight 16-bit weights of a word ($8) times a factor, which lies twice in $9. A byte has two
    neighbours: put at both ends of 16 bits each, they are a register of the product's operand. Written as
    elements, each would be packed again: 2.6 instructions for a weight are 5 then."""
    lines = ["{ .reg .b32 raised, at, bits; shl.b32 raised, $8, 4;"]
    for i in range(4):
        lines += [
            f"prmt.b32 at, $8, raised, {i << 12 | (4 + i) << 4:#x};",
            f"shr.u32 bits, at, {shift}; and.b32 bits, bits, {magnitudes:#x};",
            "lop3.b32 bits, at, 0x80008000, bits, 0xEA;",
            f"{multiply} bits, bits, $9; mov.b32 {{${2 * i}, ${2 * i + 1}}}, bits;",
        ]
    return tl.constexpr(" ".join([*lines, "}"]))


BFLOAT16 = _assembly(6, 0x01C001C0, "mul.rn.bf16x2")
FLOAT16 = _assembly(3, 0x0E000E00, "mul.rn.f16x2")
# With these units scales are exact from 2^-63 to 2^64 in bfloat16 and float32, from 2^-26 to 2^3 in float16.
# Smaller ones count as nothing, larger ones as the largest.
UNIT = {torch.bfloat16: 63, torch.float32: 63, torch.float16: 2}
DTYPES = tuple(UNIT)
ROWS, WORDS = 16, 64  # of a program


def words(blocks_NGB: Tensor) -> Tensor:
    """int32 [..., 4 G]: the same memory."""
    return blocks_NGB.view(torch.int32).flatten(-2)


@triton.jit
def expanded(word, scale, DTYPE: tl.constexpr, UNIT: tl.constexpr, ASSEMBLY: tl.constexpr):
    """[N, 8 W] in DTYPE: the weights of words [N, W] with scales [N, W / 4], over 2^UNIT."""
    if ASSEMBLY and tl.float32 != DTYPE:
        return _expanded(word, scale, DTYPE, UNIT)
    N: tl.constexpr = word.shape[0]
    W: tl.constexpr = word.shape[1]
    S: tl.constexpr = scale.shape[1]
    field = _field(scale, DTYPE, UNIT)
    if tl.float32 == DTYPE:
        factor = (field << 23).to(tl.float32, bitcast=True)
    else:
        factor = field.to(tl.int16).to(DTYPE, bitcast=True)
    factor = tl.reshape(tl.broadcast_to(factor[:, :, None], [N, S, WORDS_OF_A_SCALE]), [N, W])
    # Elements 0 and 4 of eight, 1 and 5, 2 and 6, 3 and 7; then in order.
    v04 = _pair(word << 12, factor, DTYPE)
    v15 = _pair(word << 8, factor, DTYPE)
    v26 = _pair(word << 4, factor, DTYPE)
    v37 = _pair(word, factor, DTYPE)
    return tl.reshape(tl.join(tl.join(v04, v26), tl.join(v15, v37)), [N, 8 * W])


@triton.jit
def _field(scale, DTYPE: tl.constexpr, UNIT: tl.constexpr):
    """The exponent of the factor of a scale; of 16 bits in its place."""
    exponent = scale.to(tl.int32)
    if tl.float16 == DTYPE:
        return tl.minimum(tl.maximum(exponent - 127 + 15 + (14 - UNIT), 0), 30) << 10
    field = tl.minimum(exponent + (126 - UNIT), 254)
    return field << 7 if tl.bfloat16 == DTYPE else field


@triton.jit
def _expanded(word, scale, DTYPE: tl.constexpr, UNIT: tl.constexpr):
    N: tl.constexpr = word.shape[0]
    W: tl.constexpr = word.shape[1]
    S: tl.constexpr = scale.shape[1]
    field = _field(scale, DTYPE, UNIT)
    twice = tl.broadcast_to((field | (field << 16))[:, :, None], [N, S, WORDS_OF_A_SCALE])
    TEXT: tl.constexpr = BFLOAT16 if tl.bfloat16 == DTYPE else FLOAT16
    v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
        TEXT, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [word, tl.reshape(twice, [N, W])],
        dtype=(tl.int16, tl.int16, tl.int16, tl.int16, tl.int16, tl.int16, tl.int16, tl.int16),
        is_pure=True, pack=1,
    )  # fmt: skip
    even, odd = tl.join(tl.join(v0, v4), tl.join(v2, v6)), tl.join(tl.join(v1, v5), tl.join(v3, v7))
    return tl.reshape(tl.join(even, odd), [N, 8 * W]).to(DTYPE, bitcast=True)


@triton.jit
def _pair(word, factor, DTYPE: tl.constexpr):
    """[N, W, 2]: the codes in bits 12 .. 15 and 28 .. 31 of words, times the factor."""
    if tl.float16 == DTYPE:
        bits = (word & SIGNS) | ((word >> 3) & 0x0E000E00)
    else:
        bits = (word & SIGNS) | ((word >> 6) & 0x01C001C0)
    if tl.float32 == DTYPE:
        low = (bits << 16).to(tl.float32, bitcast=True)
        high = (bits & HIGH).to(tl.float32, bitcast=True)
    else:
        low = bits.to(tl.int16).to(DTYPE, bitcast=True)
        high = (bits >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    return tl.join(low * factor, high * factor)


def unsupported(kernel: str, blocks_NGB: Tensor, scales_NG: Tensor, dtype: torch.dtype) -> str | None:
    if dtype not in (torch.bfloat16, torch.float32):
        return f"expands to bfloat16 and float32, not {str(dtype).removeprefix('torch.')}"
    return None if blocks_NGB.is_contiguous() and scales_NG.is_contiguous() else "needs contiguous tensors"


@triton.jit(do_not_specialize=["rows"])
def _expand(word, scales, y, rows, W, scaled_back, UNIT: tl.constexpr, ROWS: tl.constexpr,
            WORDS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    w, s = tl.program_id(1) * WORDS + tl.arange(0, WORDS), tl.arange(0, WORDS // WORDS_OF_A_SCALE)
    s += tl.program_id(1) * (WORDS // WORDS_OF_A_SCALE)
    is_row = (row < rows)[:, None]
    words_NW = tl.load(word + row[:, None] * W + w[None, :], mask=is_row & (w < W)[None, :], other=0)
    groups = W // WORDS_OF_A_SCALE
    scale_NS = tl.load(
        scales + row[:, None] * groups + s[None, :], mask=is_row & (s < groups)[None, :], other=0
    )
    w_NK = expanded(words_NW, scale_NS, tl.float32, UNIT, False) * scaled_back
    k = tl.program_id(1) * (8 * WORDS) + tl.arange(0, 8 * WORDS)
    tl.store(
        y + row[:, None] * (8 * W) + k[None, :],
        w_NK.to(y.dtype.element_ty),
        mask=is_row & (k < 8 * W)[None, :],
    )


def low_bit_dequant(blocks_NGB: Tensor, scales_NG: Tensor, dtype: torch.dtype) -> Tensor:
    y_NK = blocks_NGB.new_empty((*scales_NG.shape[:-1], scales_NG.shape[-1] * 32), dtype=dtype)
    if y_NK.numel() == 0:
        return y_NK
    width = y_NK.shape[-1] // CODES
    rows = y_NK.numel() // y_NK.shape[-1]
    _expand[(ceil_div(rows, ROWS), ceil_div(width, WORDS))](
        words(blocks_NGB),
        scales_NG,
        y_NK,
        rows,
        width,
        2.0 ** UNIT[torch.float32],
        UNIT=UNIT[torch.float32],
        ROWS=ROWS,
        WORDS=WORDS,
        num_warps=4,
    )
    return y_NK
