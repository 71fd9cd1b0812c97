"""Sums that are kept in few bits, in Triton: what precision.py does in two operations for each part of a sum,
in one launch.

    s <- round(s) + sum of PART terms           part by part, the last first; rounded at the end if there
                                                was more than one

The terms of a part, products or numbers, are added in float32, as a tensor core does.

Z batch · M rows · K terms of a sum · N columns · P parts of a sum · R sums.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.launch import ceil_div, power_of_two

_KEPT = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_ROWS, _COLUMNS = (16, 64), 128  # of a tile: at least and at most
_SUMS = 128  # of a program
_AHEAD = 8  # parts that are loaded before they are added: a long sum would wait for each


def product(a_ZMK: Tensor, b_ZKN: Tensor, part: int, kept: torch.dtype) -> Tensor:
    """[Z, M, N] in float32, of factors of at most that; without Z if both are matrices. `part`: a power of
    two, at least 16; `kept`: bfloat16 or float16."""
    if a_ZMK.ndim == 2:
        return product(a_ZMK[None], b_ZKN[None], part, kept)[0]
    batch, rows, inner = a_ZMK.shape
    columns = b_ZKN.shape[2]
    y_ZMN = a_ZMK.new_empty((batch, rows, columns), dtype=torch.float32)
    if not y_ZMN.numel():
        return y_ZMN
    tile = min(max(power_of_two(rows), _ROWS[0]), _ROWS[1])
    programs = batch * ceil_div(rows, tile) * ceil_div(columns, _COLUMNS)
    _multiply[(programs,)](
        a_ZMK, b_ZKN, y_ZMN, rows, columns, inner, *a_ZMK.stride(), *b_ZKN.stride(),
        KEPT=_KEPT[kept], PART=part, ROWS=tile, COLUMNS=_COLUMNS,
    )  # fmt: skip
    return y_ZMN


def total(x: Tensor, dim: int, part: int, kept: torch.dtype) -> Tensor:
    """The sum of float32 `x` over `dim`, which is gone; `part` and `kept` as for `product`."""
    terms_RK = x.movedim(dim, -1)
    parts = ceil_div(terms_RK.shape[-1], part)
    padded = torch.nn.functional.pad(terms_RK, (0, parts * part - terms_RK.shape[-1]))
    sums_PR = padded.reshape(-1, parts, part).sum(-1).T.contiguous()
    y_R = sums_PR.new_empty(sums_PR.shape[1])
    if y_R.numel():
        _add_up[(ceil_div(len(y_R), _SUMS),)](
            sums_PR, y_R, parts, len(y_R), KEPT=_KEPT[kept], SUMS=_SUMS, AHEAD=_AHEAD
        )
    return y_R.view(terms_RK.shape[:-1])


@triton.jit
def _multiply(a, b, y, M, N, K, a_batch, a_row, a_inner, b_batch, b_inner, b_column, KEPT: tl.constexpr,
              PART: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row_tiles, column_tiles = tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    batch, tile = program // (row_tiles * column_tiles), program % (row_tiles * column_tiles)
    # Tiles of rows lie next to each other: they share columns of b.
    row = tile % row_tiles * ROWS + tl.arange(0, ROWS)
    column = tile // row_tiles * COLUMNS + tl.arange(0, COLUMNS)
    a_at = a + batch * a_batch + row[:, None] * a_row
    b_at = b + batch * b_batch + column[None, :] * b_column
    parts = tl.cdiv(K, PART)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for done in range(parts):
        k = (parts - 1 - done).to(tl.int64) * PART + tl.arange(0, PART)
        left = tl.load(a_at + k[None, :] * a_inner, mask=(row < M)[:, None] & (k < K)[None, :], other=0.0)
        right = tl.load(b_at + k[:, None] * b_inner, mask=(k < K)[:, None] & (column < N)[None, :], other=0.0)
        total = total.to(KEPT).to(tl.float32) + tl.dot(left, right, input_precision="ieee")
    if parts > 1:
        total = total.to(KEPT).to(tl.float32)
    y_at = y + (batch * M + row[:, None]) * N + column[None, :]
    tl.store(y_at, total, mask=(row < M)[:, None] & (column < N)[None, :])


@triton.jit
def _add_up(sums, y, P, R, KEPT: tl.constexpr, SUMS: tl.constexpr, AHEAD: tl.constexpr):
    r = tl.program_id(0) * SUMS + tl.arange(0, SUMS)
    total = tl.zeros([SUMS], tl.float32)
    for first in range(0, P, AHEAD):
        for after in tl.static_range(AHEAD):
            p = P - 1 - first - after
            one = tl.load(sums + p.to(tl.int64) * R + r, mask=(r < R) & (p >= 0), other=0.0)
            # Past the first part there is nothing to add, and a sum of one part is not rounded.
            total = tl.where(p >= 0, total.to(KEPT).to(tl.float32) + one, total)
    if P > 1:
        total = total.to(KEPT).to(tl.float32)
    tl.store(y + r, total, mask=r < R)
