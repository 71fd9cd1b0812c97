"""embedding_bag in Triton: a program for a few bags of one feature, which it reads a few ids at a time.

All rows that a step of the loop needs are on their way together, which is what a gather from a table in
memory is bound by. Short bags share a program; of long ones it reads several ids in a step.

B samples · F features · D features of a row.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two

IN_FLIGHT = 8  # rows of a step: 16 bytes for each of 32 threads are a row of 128 float32 values
WIDEST_ROW = 1024


def unsupported(
    kernel: str, ids_N: Tensor, offsets_S1: Tensor, weight_VD: Tensor, num_features: int, mode: str
) -> str | None:
    if weight_VD.shape[1] > WIDEST_ROW:
        return f"serves rows of up to {WIDEST_ROW} values, not {weight_VD.shape[1]}"
    if not (weight_VD.is_contiguous() and ids_N.is_contiguous() and offsets_S1.is_contiguous()):
        return "needs contiguous tensors"
    return checks.not_float32_compute(weight_VD)


@triton.jit(do_not_specialize=["B"])
def _pool(ids, offsets, weight, out, B, F, D: tl.constexpr, MEAN: tl.constexpr, BAGS: tl.constexpr,
          STEP: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    feature = tl.program_id(1)
    sample = tl.program_id(0) * BAGS + tl.arange(0, BAGS)
    column = tl.arange(0, WIDTH)
    is_sample, is_column = sample < B, column < D
    at = offsets + feature.to(tl.int64) * B + sample
    begin = tl.load(at, mask=is_sample, other=0)
    end = tl.load(at + 1, mask=is_sample, other=0)
    total = tl.zeros([BAGS, WIDTH], tl.float32)
    for first in range(0, tl.max(end - begin), STEP):
        place = begin[:, None] + first + tl.arange(0, STEP)[None, :]
        is_held = place < end[:, None]
        row = tl.load(ids + place, mask=is_held, other=0).to(tl.int64)
        value_at = weight + row[:, :, None] * D + column[None, None, :]
        value = tl.load(value_at, mask=is_held[:, :, None] & is_column[None, None, :], other=0.0)
        total += tl.sum(value.to(tl.float32), axis=1)
    if MEAN:
        total = total / tl.maximum(end - begin, 1).to(tl.float32)[:, None]
    out_at = out + (sample.to(tl.int64) * F + feature)[:, None] * D + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=is_sample[:, None] & is_column[None, :])


def embedding_bag(
    ids_N: Tensor, offsets_S1: Tensor, weight_VD: Tensor, num_features: int, mode: str
) -> Tensor:
    bags, width = offsets_S1.numel() - 1, weight_VD.shape[1]
    samples = bags // num_features
    pooled_BFD = weight_VD.new_empty(samples, num_features, width)
    if pooled_BFD.numel() == 0:
        return pooled_BFD
    # The mean length is what the host knows of the bags.
    step = min(IN_FLIGHT, power_of_two(ceil_div(ids_N.numel(), bags)))
    columns = power_of_two(width)
    _pool[(ceil_div(samples, IN_FLIGHT // step), num_features)](
        ids_N, offsets_S1, weight_VD, pooled_BFD, samples, num_features, D=width, MEAN=mode == "mean",
        BAGS=IN_FLIGHT // step, STEP=step, WIDTH=columns, num_warps=max(1, columns // 256),
    )  # fmt: skip
    return pooled_BFD
