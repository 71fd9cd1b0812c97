"""token_shift and token_shift_update for GPUs: tiles of tokens and channels; a row's first tile also writes
the state that the row leaves, because it alone reads the old one.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import power_of_two
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.ragged import row_of_tile

TOKENS, CHANNELS, STEP_CHANNELS = 8, 256, 256


def unsupported(kernel: str, x: Tensor, mixes: Tensor, state: Tensor, *_: object) -> str | None:
    if reason := checks.not_float32_compute(x, mixes):
        return reason
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if x.stride(-1) != 1 or not state.is_contiguous() or not mixes.is_contiguous():
        return "needs a contiguous last dimension, and contiguous mixes and states"
    return None


@triton.jit
def _store_mixed(x, before, mixes, at, c, mask, D: tl.constexpr, M: tl.constexpr):
    """The mixes of x [tokens, channels] to `at`, M D apart from token to token."""
    for m in tl.static_range(M):
        share = tl.load(mixes + m * D + c, mask=c < D, other=0.0).to(tl.float32)
        y = x + (before - x) * share[None, :]
        tl.store(at + m * D, y.to(at.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _tile(x, mixes, state, rows, starts, y, num_rows, x_stride, D: tl.constexpr, M: tl.constexpr,
          COUNT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """COUNT tokens of one row and some channels; tiles count from a row's first token."""
    tile = tl.program_id(0)
    row = row_of_tile(starts, num_rows, tile, COUNT)
    origin = tl.load(starts)
    row_start = tl.load(starts + row) - origin
    query_len = tl.load(starts + row + 1) - origin - row_start
    first = (tile - row_start // COUNT - row) * COUNT
    if first >= query_len:
        return
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = state + tl.load(rows + row).to(tl.int64) * D + c
    i = first + tl.arange(0, COUNT)[:, None]
    token = (row_start + i).to(tl.int64)
    mask = (i < query_len) & (c < D)[None, :]
    at = x + token * x_stride + c[None, :]
    mine = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    before = tl.load(at - x_stride, mask=mask & (i > 0), other=0.0).to(tl.float32)
    if first == 0:
        kept = tl.load(own, mask=c < D, other=0.0)
        before = tl.where(i == 0, kept[None, :], before)
        tl.debug_barrier()  # every thread has read the old state
        last = x + (row_start + query_len - 1).to(tl.int64) * x_stride + c
        tl.store(own, tl.load(last, mask=c < D, other=0.0).to(tl.float32), mask=c < D)
    _store_mixed(mine, before, mixes, y + token * (M * D) + c[None, :], c, mask, D, M)


@triton.jit
def _step(x, mixes, state, rows, y, x_stride, D: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
          OVERLAPS: tl.constexpr):  # fmt: skip
    """One token of one row, for some channels."""
    follow(OVERLAPS)
    b = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = c < D
    own = state + tl.load(rows + b).to(tl.int64) * D + c
    mine = tl.load(x + b * x_stride + c, mask=mask, other=0.0).to(tl.float32)
    before = tl.load(own, mask=mask, other=0.0)
    tl.store(own, mine, mask=mask)
    at = y + b * (M * D) + c
    _store_mixed(mine[None, :], before[None, :], mixes, at[None, :], c, mask[None, :], D, M)


def token_shift(
    x_TD: Tensor,
    mixes_MD: Tensor,
    state_RD: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    (num_tokens, channels), (mixes, _), num_rows = x_TD.shape, mixes_MD.shape, rows_B.shape[0]
    y_TMD = x_TD.new_empty(num_tokens, mixes, channels)
    if num_tokens == 0:
        return y_TMD
    block = min(CHANNELS, power_of_two(channels))
    _tile[(num_tokens // TOKENS + num_rows, triton.cdiv(channels, block))](
        x_TD, mixes_MD, state_RD, rows_B, query_starts_B1, y_TMD, num_rows, x_TD.stride(0),
        D=channels, M=mixes, COUNT=TOKENS, BLOCK=block,
    )  # fmt: skip
    return y_TMD


def token_shift_update(x_BD: Tensor, mixes_MD: Tensor, state_RD: Tensor, rows_B: Tensor) -> Tensor:
    (num_rows, channels), (mixes, _) = x_BD.shape, mixes_MD.shape
    y_BMD = x_BD.new_empty(num_rows, mixes, channels)
    if num_rows == 0:
        return y_BMD
    block = min(STEP_CHANNELS, power_of_two(channels))
    _step[(triton.cdiv(channels, block), num_rows)](
        x_BD, mixes_MD, state_RD, rows_B, y_BMD, x_BD.stride(0), D=channels, M=mixes, BLOCK=block,
        num_warps=1, **overlap(x_BD.device),
    )  # fmt: skip
    return y_BMD
