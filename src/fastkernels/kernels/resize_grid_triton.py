"""resize_grid in Triton: a program for each token visits the entries of the table that reach it.

M, N rows and columns of the table · D features. Where a grid is larger than the table at most two rows and
two columns reach a token.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import power_of_two, warps
from fastkernels.kernels.resize_grid import places

WIDEST = 8192  # features that one program holds in registers


def unsupported(kernel: str, table_MND: Tensor, sizes_B2: Tensor, num_tokens: int) -> str | None:
    if table_MND.shape[-1] > WIDEST:
        return f"serves up to {WIDEST} features, not {table_MND.shape[-1]}"
    if not table_MND.is_contiguous():
        return "needs a contiguous table"
    return checks.not_float32_compute(table_MND)


@triton.jit
def _weight(entry, centre, reach):
    return tl.maximum(1.0 - tl.abs(entry + 0.5 - centre) / reach, 0.0)


@triton.jit
def _resample(table, y, x, heights, widths, out, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
              WIDTH: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    y_scale = M / tl.load(heights + token).to(tl.float32)
    x_scale = N / tl.load(widths + token).to(tl.float32)
    y_reach, x_reach = tl.maximum(y_scale, 1.0), tl.maximum(x_scale, 1.0)
    y_centre = y_scale * (tl.load(y + token).to(tl.float32) + 0.5)
    x_centre = x_scale * (tl.load(x + token).to(tl.float32) + 0.5)
    # Entries outside these bounds weigh nothing; one too many does no harm.
    y_first = tl.maximum(tl.floor(y_centre - y_reach - 0.5).to(tl.int32), 0)
    y_end = tl.minimum(tl.ceil(y_centre + y_reach).to(tl.int32), M)
    x_first = tl.maximum(tl.floor(x_centre - x_reach - 0.5).to(tl.int32), 0)
    x_end = tl.minimum(tl.ceil(x_centre + x_reach).to(tl.int32), N)

    acc = tl.zeros([WIDTH], tl.float32)
    total = 0.0
    for m in range(y_first, y_end):
        u = _weight(m, y_centre, y_reach)
        for n in range(x_first, x_end):
            weight = u * _weight(n, x_centre, x_reach)
            entry = tl.load(table + (m * N + n) * D + column, mask=column < D, other=0.0).to(tl.float32)
            acc += weight * entry
            total += weight
    tl.store(out + token * D + column, (acc / total).to(out.dtype.element_ty), mask=column < D)


def resize_grid(table_MND: Tensor, sizes_B2: Tensor, num_tokens: int) -> Tensor:
    rows, columns, dim = table_MND.shape
    out_TD = torch.empty((num_tokens, dim), dtype=table_MND.dtype, device=table_MND.device)
    if out_TD.numel() == 0:
        return out_TD
    width = power_of_two(dim)
    _resample[(num_tokens,)](
        table_MND,
        *places(sizes_B2, num_tokens),
        out_TD,
        M=rows,
        N=columns,
        D=dim,
        WIDTH=width,
        **warps(width),
    )
    return out_TD
