"""summed_embedding in Triton: a program gathers, sums and normalises a few rows; the sum is never written.

T tokens · D hidden.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, warps
from fastkernels.kernels.norms import WIDEST


def unsupported(kernel: str, ids_T: Tensor, positions_T: Tensor, *rest: Tensor | float) -> str | None:
    tables = [x for x in rest if isinstance(x, Tensor)]
    if (width := tables[0].shape[-1]) > WIDEST:
        return f"serves rows of up to {WIDEST} elements, not {width}"
    return checks.not_float32_compute(*tables)


@triton.jit(do_not_specialize=["count"])
def _embed(ids, positions, words, places, shared, weight, bias, y, count, eps,
           D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_row, here = row < count, column < D
    mask = is_row[:, None] & here[None, :]
    word = tl.load(ids + row, mask=is_row, other=0).to(tl.int64)
    place = tl.load(positions + row, mask=is_row, other=0).to(tl.int64)
    value = tl.load(words + word[:, None] * D + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value += tl.load(places + place[:, None] * D + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value += tl.load(shared + column, mask=here, other=0.0).to(tl.float32)[None, :]
    mean = tl.sum(value, axis=1) * (1.0 / D)
    centred = tl.where(here[None, :], value - mean[:, None], 0.0)
    root = tl.sqrt_rn(tl.sum(centred * centred, axis=1) * (1.0 / D) + eps)
    scale = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)
    w = tl.load(weight + column, mask=here, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=here, other=0.0).to(tl.float32)
    result = centred * scale[:, None] * w[None, :] + b[None, :]
    tl.store(y + row[:, None] * D + column[None, :], result.to(y.dtype.element_ty), mask=mask)


def summed_embedding(
    ids_T: Tensor,
    positions_T: Tensor,
    words_VD: Tensor,
    places_PD: Tensor,
    shared_D: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> Tensor:
    count, dim = len(ids_T), words_VD.shape[1]
    y_TD = words_VD.new_empty(count, dim)
    if count:
        width = power_of_two(dim)
        rows = rows_in_a_tile(count, width, words_VD)
        _embed[(ceil_div(count, rows),)](
            ids_T.contiguous(), positions_T.contiguous(), words_VD, places_PD, shared_D, weight_D, bias_D,
            y_TD, count, eps, D=dim, ROWS=rows, WIDTH=width, **warps(rows * width),
        )  # fmt: skip
    return y_TD
