"""segment_max in Triton: a program has a segment, or a part of its features, and goes through its rows."""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.kernels.overlap import follow, overlap

MOST_FEATURES = 512  # of a program


def unsupported(kernel: str, x_ND: Tensor, indices_N: Tensor, idx_ptr_M1: Tensor) -> str | None:
    return checks.not_float32_compute(x_ND)


@triton.jit
def _largest(x, indices, idx_ptr, y, row_stride, feature_stride, D, FEATURES: tl.constexpr,
             OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    m = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    begin, end = tl.load(idx_ptr + m), tl.load(idx_ptr + m + 1)
    most = tl.full([FEATURES], float("-inf"), tl.float32)
    for i in range(begin, end):
        row = tl.load(indices + i)
        value = tl.load(x + row * row_stride + d * feature_stride, mask=d < D, other=0.0).to(tl.float32)
        most = tl.maximum(most, value, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + m * D + d, most.to(y.dtype.element_ty), mask=d < D)


def segment_max(x_ND: Tensor, indices_N: Tensor, idx_ptr_M1: Tensor) -> Tensor:
    segments, features = len(idx_ptr_M1) - 1, x_ND.shape[1]
    y_MD = x_ND.new_empty(segments, features)
    if y_MD.numel() == 0:
        return y_MD
    wide = min(MOST_FEATURES, power_of_two(features))
    _largest[(segments, ceil_div(features, wide))](
        x_ND, indices_N, idx_ptr_M1, y_MD, *x_ND.stride(), features, FEATURES=wide,
        num_warps=1 if wide < 256 else 4, **overlap(x_ND.device),
    )  # fmt: skip
    return y_MD
