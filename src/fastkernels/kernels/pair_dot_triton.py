"""pair_dot in Triton: a program for some pairs, whose rows are all on their way together.

P pairs · D columns of x.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two

TILE = 1024  # elements of each side: 8 for each thread of four warps
WIDEST_ROW = 4096


def unsupported(kernel: str, x_ND: Tensor, pairs_2P: Tensor) -> str | None:
    if x_ND.shape[1] > WIDEST_ROW:
        return f"serves rows of up to {WIDEST_ROW} values, not {x_ND.shape[1]}"
    if not (x_ND.is_contiguous() and pairs_2P.is_contiguous()):
        return "needs contiguous tensors"
    return checks.not_float32_compute(x_ND)


@triton.jit(do_not_specialize=["P"])
def _multiply(x, pairs, out, P, D: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr):
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    column = tl.arange(0, WIDTH)
    mask = (pair < P)[:, None] & (column < D)[None, :]
    i = tl.load(pairs + pair, mask=pair < P, other=0).to(tl.int64)
    j = tl.load(pairs + P + pair, mask=pair < P, other=0).to(tl.int64)
    a = tl.load(x + i[:, None] * D + column[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x + j[:, None] * D + column[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(out + pair, tl.sum(a * b, 1).to(out.dtype.element_ty), mask=pair < P)


def pair_dot(x_ND: Tensor, pairs_2P: Tensor) -> Tensor:
    pairs, dim = pairs_2P.shape[1], x_ND.shape[1]
    out_P = x_ND.new_empty(pairs)
    if pairs == 0:
        return out_P
    width = power_of_two(dim)
    tile = max(1, TILE // width)
    _multiply[(ceil_div(pairs, tile),)](x_ND, pairs_2P, out_P, pairs, D=dim, PAIRS=tile, WIDTH=width)
    return out_P
