"""box_decode in Triton: a program for each tile of sides of cells, a row of bins each.

Y, X rows and columns of cells · R bins.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, warps


def unsupported(kernel: str, logits_BYXS: Tensor, stride: int) -> str | None:
    if not logits_BYXS.is_contiguous():
        return "needs contiguous logits"
    return checks.not_float32_compute(logits_BYXS)


@triton.jit(do_not_specialize=["sides"])
def _decode(logits, boxes, sides, Y, X, stride, R: tl.constexpr, SIDES: tl.constexpr, BINS: tl.constexpr):
    side = tl.program_id(0).to(tl.int64) * SIDES + tl.arange(0, SIDES)
    j = tl.arange(0, BINS)
    is_side, is_bin = side < sides, (j < R)[None, :]
    # Sides past the end compute on zeros: nothing but -inf would make NaN.
    at = logits + side[:, None] * R + j[None, :]
    logit = tl.load(at, mask=is_side[:, None] & is_bin, other=0.0).to(tl.float32)
    logit = tl.where(is_bin, logit, float("-inf"))
    share = tl.exp(logit - tl.max(logit, axis=1)[:, None])
    distance = tl.sum(share * j[None, :], axis=1) / tl.sum(share, axis=1)
    cell, which = side // 4, side % 4
    along = tl.where(which % 2 == 0, cell % X, cell // X % Y)
    centre = along.to(tl.float32) + 0.5
    box = tl.where(which < 2, centre - distance, centre + distance) * stride
    tl.store(boxes + side, box, mask=is_side)


def box_decode(logits_BYXS: Tensor, stride: int) -> Tensor:
    batch, rows, columns, logits = logits_BYXS.shape
    boxes_BN4 = logits_BYXS.new_empty((batch, rows * columns, 4), dtype=torch.float32)
    if boxes_BN4.numel() == 0:
        return boxes_BN4
    bins = power_of_two(logits // 4)
    tile = rows_in_a_tile(boxes_BN4.numel(), bins, logits_BYXS)
    _decode[(ceil_div(boxes_BN4.numel(), tile),)](
        logits_BYXS, boxes_BN4, boxes_BN4.numel(), rows, columns, stride,
        R=logits // 4, SIDES=tile, BINS=bins, **warps(tile * bins),
    )  # fmt: skip
    return boxes_BN4
