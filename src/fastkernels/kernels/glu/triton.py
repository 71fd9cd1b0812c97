"""glu in Triton: one launch over both halves, a tile of rows and columns for each program.

T rows · F width of a half.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import activated
from fastkernels.kernels.launch import (
    ceil_div,
    multiprocessors,
    power_of_two,
    rows_in_a_tile,
    rows_of,
    warps,
)
from fastkernels.kernels.overlap import follow, overlap

# Columns of a program. Where the widest would leave processors idle, tiles are halved, down to a 16-byte load
# for each thread of a warp: one row of 14,336 took 2.0 us, where Inductor needs 1.4 on an H200.
WIDEST_TILE, NARROWEST_TILE = 1024, 256


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
    tile = min(WIDEST_TILE, power_of_two(width))
    while tile > NARROWEST_TILE and x.count * ceil_div(width, tile) < multiprocessors(x_T2F.device):
        tile //= 2
    column_tiles = ceil_div(width, tile)
    rows = rows_in_a_tile(x.count * column_tiles, tile, x_T2F)
    _gate_rows[(ceil_div(x.count, rows) * column_tiles,)](
        x.tensor, y_TF, x.count, x.inner, x.outer_stride, x.inner_stride, column_tiles,
        F=width, ACTIVATION=activation, ROWS=rows, WIDTH=tile, **warps(rows * tile), **overlap(x_T2F.device),
    )  # fmt: skip
    return y_TF
