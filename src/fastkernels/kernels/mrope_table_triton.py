"""mrope_table in Triton: a program for a few tokens, all features at once.

T tokens · R rotated features
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.launch import TILE_ELEMENTS, ceil_div, power_of_two, warps


def unsupported(
    kernel: str, positions_3T: Tensor, cos_sin_PR: Tensor, section: Sequence[int], interleaved: bool
) -> str | None:
    return "needs a contiguous last dimension" if cos_sin_PR.stride(1) != 1 else None


@triton.jit(do_not_specialize=["T"])
def _rows(positions, cos_sin, out, T, axis_stride, token_stride, table_stride, R: tl.constexpr,
          FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, INTERLEAVED: tl.constexpr,
          TOKENS: tl.constexpr, FEATURES: tl.constexpr):  # fmt: skip
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    j = tl.arange(0, FEATURES)
    frequency = j % (R // 2)
    if INTERLEAVED:
        axis = frequency % 3
        axis = tl.where((axis == 1) & (frequency >= 3 * SECOND), 0, axis)
        axis = tl.where((axis == 2) & (frequency >= 3 * THIRD), 0, axis)
    else:
        axis = (frequency >= FIRST).to(tl.int32) + (frequency >= FIRST + SECOND).to(tl.int32)
    mask = (t < T)[:, None] & (j < R)[None, :]
    place = tl.load(positions + axis[None, :] * axis_stride + t[:, None] * token_stride, mask=mask, other=0)
    row = tl.load(cos_sin + place.to(tl.int64) * table_stride + j[None, :], mask=mask)
    tl.store(out + t.to(tl.int64)[:, None] * R + j[None, :], row, mask=mask)


def mrope_table(
    positions_3T: Tensor, cos_sin_PR: Tensor, section: Sequence[int], interleaved: bool
) -> Tensor:
    tokens, features = positions_3T.shape[1], cos_sin_PR.shape[1]
    out_TR = cos_sin_PR.new_empty(tokens, features)
    if tokens == 0:
        return out_TR
    width = power_of_two(features)
    rows = max(1, TILE_ELEMENTS // width)
    _rows[(ceil_div(tokens, rows),)](
        positions_3T, cos_sin_PR, out_TR, tokens, *positions_3T.stride(), cos_sin_PR.stride(0),
        R=features, FIRST=section[0], SECOND=section[1], THIRD=section[2], INTERLEAVED=interleaved,
        TOKENS=rows, FEATURES=width, **warps(rows * width),
    )  # fmt: skip
    return out_TR
