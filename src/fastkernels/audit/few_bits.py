"""A matrix product whose sum is kept in few bits, in Triton: what precision.py does in two operations for
each part of a sum, in one launch.

    s <- round(s) + sum of PART products        part by part, the last first; rounded at the end if there
                                                was more than one

The products of a part are added in float32, as a tensor core does.

Z batch · M rows · K products of a sum · N columns.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.launch import ceil_div, power_of_two

_KEPT = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_ROWS, _COLUMNS = (16, 64), 128  # of a tile: at least and at most


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
