"""linear_of_parts in Triton for one row, on CUDA cores: all parts in one launch (kernels/gemv.py has the walk
over the weight). A program owns a few outputs of one part.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import gemv
from fastkernels.kernels.gemv import product
from fastkernels.kernels.launch import ceil_div


def unsupported(kernel: str, x_TMK: Tensor, weight_NK: Tensor, sizes: Sequence[int]) -> str | None:
    if x_TMK.shape[0] != 1:
        return f"serves one row, not {x_TMK.shape[0]}"
    if any(size % gemv.TILE.outputs for size in sizes):
        return f"needs parts of a multiple of {gemv.TILE.outputs} rows, not {list(sizes)}"
    return gemv.unsupported(x_TMK[:, 0], weight_NK, None)


@triton.jit(do_not_specialize=["steps"])
def _multiply(x, weight, y, K, N, steps, weight_stride, part_stride, ENDS: tl.constexpr, PARTS: tl.constexpr,
              OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, EVEN: tl.constexpr, OVERLAPS: tl.constexpr,
              EARLY: tl.constexpr):  # fmt: skip
    first = tl.program_id(0) * OUTPUTS
    part = 0
    for i in tl.static_range(PARTS):
        part += tl.where(first >= ENDS[i], 1, 0)
    n = first + tl.arange(0, OUTPUTS)
    weight_at_N = weight + n.to(tl.int64) * weight_stride
    sum_N = product(x + part * part_stride, weight_at_N, K, steps, INPUTS, EVEN, OVERLAPS, EARLY)
    tl.store(y + n, sum_N.to(y.dtype.element_ty))


def linear_of_parts(x_TMK: Tensor, weight_NK: Tensor, sizes: Sequence[int]) -> Tensor:
    outputs, inputs = weight_NK.shape
    y_TN = x_TMK.new_empty(1, outputs)
    tile = gemv.tile_of(inputs)
    x = x_TMK if x_TMK.stride(-1) == 1 else x_TMK.contiguous()
    _multiply[(ceil_div(outputs, tile.outputs),)](
        x, weight_NK, y_TN, inputs, outputs, weight_stride=weight_NK.stride(0), part_stride=x.stride(1),
        ENDS=tuple(accumulate(sizes)), PARTS=len(sizes), OUTPUTS=tile.outputs,
        **gemv.options(weight_NK, tile),
    )  # fmt: skip
    return y_TN
