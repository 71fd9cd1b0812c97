"""sample_grid in Triton: a program for each token reads the four points around its place.

M, N rows and columns of the table · D features. Neighbouring tokens find their points in the cache.
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

WIDEST = 8192  # features that one program holds in registers


def unsupported(kernel: str, places_T2: Tensor, table_MND: Tensor) -> str | None:
    if table_MND.shape[-1] > WIDEST:
        return f"serves up to {WIDEST} features, not {table_MND.shape[-1]}"
    if not table_MND.is_contiguous() or not places_T2.is_contiguous():
        return "needs a contiguous table and contiguous places"
    return checks.not_float32_compute(table_MND)


@triton.jit
def _between(table, places, out, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    y = tl.load(places + 2 * token).to(tl.float32) * (M - 1)
    x = tl.load(places + 2 * token + 1).to(tl.float32) * (N - 1)
    m = tl.minimum(tl.maximum(tl.floor(y).to(tl.int32), 0), M - 1)
    n = tl.minimum(tl.maximum(tl.floor(x).to(tl.int32), 0), N - 1)
    below, right = tl.minimum(m + 1, M - 1), tl.minimum(n + 1, N - 1)
    u, v = y - m.to(tl.float32), x - n.to(tl.float32)
    mask = column < D
    first = tl.load(table + (m * N + n) * D + column, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(table + (m * N + right) * D + column, mask=mask, other=0.0).to(tl.float32)
    third = tl.load(table + (below * N + n) * D + column, mask=mask, other=0.0).to(tl.float32)
    last = tl.load(table + (below * N + right) * D + column, mask=mask, other=0.0).to(tl.float32)
    mixed = (1 - u) * ((1 - v) * first + v * second) + u * ((1 - v) * third + v * last)
    tl.store(out + token * D + column, mixed.to(out.dtype.element_ty), mask=mask)


def sample_grid(places_T2: Tensor, table_MND: Tensor) -> Tensor:
    rows, columns, dim = table_MND.shape
    tokens = places_T2.shape[0]
    out_TD = torch.empty((tokens, dim), dtype=table_MND.dtype, device=table_MND.device)
    if out_TD.numel() == 0:
        return out_TD
    width = power_of_two(dim)
    _between[(tokens,)](
        table_MND, places_T2, out_TD, M=rows, N=columns, D=dim, WIDTH=width, **warps(width)
    )  # fmt: skip
    return out_TD
