"""glu in Triton: one launch over both halves, a tile of rows and columns for each program.

T rows · F width of a half.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import activated
from fastkernels.kernels.launch import ceil_div, multiprocessors, power_of_two, rows_of
from fastkernels.kernels.overlap import follow, overlap

# Elements of a program. A thread takes 8, a 16-byte load of each half; 4 where the processors hold all
# programs even so. At most 2 % behind the fastest of 43 tiles for 1 to 8,192 rows of 14,336 on an H200; 16
# elements a thread cost up to 60 % (benchmarks/sweeps/glu.py).
TILE_ELEMENTS, MOST_WARPS = 1024, 8
RESIDENT_WARPS = 64  # of a processor


class Tile(NamedTuple):
    """What one program takes, and its warps."""

    columns: int
    rows: int
    warps: int


def unsupported(kernel: str, x_T2F: Tensor, activation: str) -> str | None:
    return checks.not_float32_compute(x_T2F)


@triton.jit(do_not_specialize=["count"])
def _gate_rows(x, y, count, inner, outer_stride, inner_stride, column_tiles, F: tl.constexpr,
               ACTIVATION: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
               OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % column_tiles) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < count)[:, None] & (column < F)[None, :]
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    gate_at = x + start[:, None] + column[None, :]
    gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_at + F, mask=mask, other=0.0).to(tl.float32)
    result = activated(gate, ACTIVATION) * up
    tl.store(y + row[:, None] * F + column[None, :], result.to(y.dtype.element_ty), mask=mask)


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    width = x_T2F.shape[-1] // 2
    y_TF = x_T2F.new_empty((*x_T2F.shape[:-1], width))
    if y_TF.numel() == 0:
        return y_TF
    x = rows_of(x_T2F)
    tile = tile_of(x.count, width, x_T2F)
    column_tiles = ceil_div(width, tile.columns)
    _gate_rows[(ceil_div(x.count, tile.rows) * column_tiles,)](
        x.tensor, y_TF, x.count, x.inner, x.outer_stride, x.inner_stride, column_tiles,
        F=width, ACTIVATION=activation, ROWS=tile.rows, WIDTH=tile.columns, num_warps=tile.warps,
        **overlap(x_T2F.device),
    )  # fmt: skip
    return y_TF


def tile_of(count: int, width: int, x_T2F: Tensor) -> Tile:
    """For `count` rows of `width` results."""
    columns = min(TILE_ELEMENTS, power_of_two(width))
    rows = min(TILE_ELEMENTS // columns, power_of_two(count))
    programs = ceil_div(count, rows) * ceil_div(width, columns)
    all_at_once = programs * MOST_WARPS <= RESIDENT_WARPS * multiprocessors(x_T2F.device)
    elements = 4 if all_at_once else 8
    return Tile(columns, rows, max(1, rows * columns // (32 * elements)))
