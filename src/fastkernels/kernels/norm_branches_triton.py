"""split_branches and join_branches in Triton: a program has one row in registers from first norm to last sum.

T rows · D row width. The parts would write and read the row six and eight times, in as many launches.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import norms
from fastkernels.kernels.launch import power_of_two, warps
from fastkernels.kernels.norm_branches import Branches
from fastkernels.kernels.overlap import follow, overlap

unsupported = norms.unsupported


@triton.jit
def _normal(value, eps, D: tl.constexpr, DTYPE: tl.constexpr):
    """value / sqrt(mean(value^2) + eps), rounded; both in float32. Past the end of a row it is 0."""
    root = tl.sqrt_rn(tl.sum(value * value, axis=0) * (1.0 / D) + eps)
    return (value * tl.div_rn(1.0, root)).to(DTYPE).to(tl.float32)


@triton.jit
def _split(x, residual, weight, w1, w2, w3, h, y1, y2, y3, eps,
           D: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    DTYPE: tl.constexpr = h.dtype.element_ty
    column = tl.arange(0, WIDTH)
    at, mask = tl.program_id(0).to(tl.int64) * D + column, column < D
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    left = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    normal = (_normal(value, eps, D, DTYPE) * w).to(DTYPE).to(tl.float32)
    total = (left + normal).to(DTYPE)
    tl.store(h + at, total, mask=mask)
    normal = _normal(total.to(tl.float32), eps, D, DTYPE)
    w = tl.load(w1 + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y1 + at, (normal * w).to(DTYPE), mask=mask)
    w = tl.load(w2 + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y2 + at, (normal * w).to(DTYPE), mask=mask)
    w = tl.load(w3 + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y3 + at, (normal * w).to(DTYPE), mask=mask)


@triton.jit
def _join(x1, x2, residual, w1, w2, weight, scale, h, eps,
          D: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    DTYPE: tl.constexpr = h.dtype.element_ty
    column = tl.arange(0, WIDTH)
    at, mask = tl.program_id(0).to(tl.int64) * D + column, column < D
    value = tl.load(x1 + at, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w1 + column, mask=mask, other=0.0).to(tl.float32)
    first = (_normal(value, eps, D, DTYPE) * w).to(DTYPE).to(tl.float32)
    value = tl.load(x2 + at, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w2 + column, mask=mask, other=0.0).to(tl.float32)
    second = (_normal(value, eps, D, DTYPE) * w).to(DTYPE).to(tl.float32)
    both = (first + second).to(DTYPE).to(tl.float32)
    w = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    normal = (_normal(both, eps, D, DTYPE) * w).to(DTYPE).to(tl.float32)
    left = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    total = (left + normal).to(DTYPE).to(tl.float32) * tl.load(scale).to(tl.float32)
    tl.store(h + at, total.to(DTYPE), mask=mask)


def split_branches(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, w1_D: Tensor, w2_D: Tensor, w3_D: Tensor, eps: float
) -> Branches:
    h_TD, y1_TD, y2_TD, y3_TD = (x_TD.new_empty(x_TD.shape) for _ in range(4))
    if x_TD.numel():
        rows, dim = x_TD.shape
        width = power_of_two(dim)
        _split[(rows,)](
            x_TD.contiguous(), residual_TD.contiguous(), weight_D, w1_D, w2_D, w3_D, h_TD, y1_TD, y2_TD,
            y3_TD, eps, D=dim, WIDTH=width, **warps(width), **overlap(x_TD.device),
        )  # fmt: skip
    return h_TD, y1_TD, y2_TD, y3_TD


def join_branches(
    x1_TD: Tensor,
    x2_TD: Tensor,
    residual_TD: Tensor,
    w1_D: Tensor,
    w2_D: Tensor,
    weight_D: Tensor,
    scale_1: Tensor,
    eps: float,
) -> Tensor:
    h_TD = x1_TD.new_empty(x1_TD.shape)
    if x1_TD.numel():
        rows, dim = x1_TD.shape
        width = power_of_two(dim)
        _join[(rows,)](
            x1_TD.contiguous(), x2_TD.contiguous(), residual_TD.contiguous(), w1_D, w2_D, weight_D, scale_1,
            h_TD, eps, D=dim, WIDTH=width, **warps(width), **overlap(x1_TD.device),
        )  # fmt: skip
    return h_TD
