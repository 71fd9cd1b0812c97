"""clamped_glu in Triton: one launch, a tile of rows and pairs of columns for each program.

T rows · F width of a result.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.glu_triton import tile_of
from fastkernels.kernels.launch import ceil_div, rows_of
from fastkernels.kernels.overlap import follow, overlap


def unsupported(kernel: str, x_T2F: Tensor, *_: object) -> str | None:
    return checks.not_float32_compute(x_T2F)


@triton.jit
def gated(gate, up, alpha, limit):
    """The activation of float32 values."""
    gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
    up = tl.clamp(up, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    return (up + 1.0) * (gate * tl.sigmoid(alpha * gate))


@triton.jit(do_not_specialize=["count"])
def _gate_pairs(x, y, count, inner, outer_stride, inner_stride, column_tiles, alpha, limit, F: tl.constexpr,
                ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    program = tl.program_id(0)
    row = (program // column_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first = (program % column_tiles) * WIDTH
    column, pair = first + tl.arange(0, WIDTH), 2 * first + tl.arange(0, 2 * WIDTH)
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    mask = (row < count)[:, None] & (pair < 2 * F)[None, :]
    x_tile = tl.load(x + start[:, None] + pair[None, :], mask=mask, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(x_tile, [ROWS, WIDTH, 2]))
    result = gated(gate, up, alpha, limit).to(y.dtype.element_ty)
    mask = (row < count)[:, None] & (column < F)[None, :]
    tl.store(y + row[:, None] * F + column[None, :], result, mask=mask)


def clamped_glu(x_T2F: Tensor, alpha: float, limit: float) -> Tensor:
    width = x_T2F.shape[-1] // 2
    y_TF = x_T2F.new_empty((*x_T2F.shape[:-1], width))
    if y_TF.numel() == 0:
        return y_TF
    x = rows_of(x_T2F)
    tile = tile_of(x.count, width, x_T2F)
    column_tiles = ceil_div(width, tile.columns)
    _gate_pairs[(ceil_div(x.count, tile.rows) * column_tiles,)](
        x.tensor, y_TF, x.count, x.inner, x.outer_stride, x.inner_stride, column_tiles, alpha, limit,
        F=width, ROWS=tile.rows, WIDTH=tile.columns, num_warps=tile.warps, **overlap(x_T2F.device),
    )  # fmt: skip
    return y_TF
