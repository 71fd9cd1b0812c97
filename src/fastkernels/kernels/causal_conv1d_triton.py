"""causal_conv1d and causal_conv1d_update for GPUs: tiles of tokens and channels; a row's first tile also
writes the state that the row leaves.

The first tile alone reads the old state, so no other may write the new one: it would race. The new state is
the row's last inputs, which lie in memory whoever computes them.
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

TOKENS, CHANNELS, STEP_CHANNELS = 16, 128, 256


def unsupported(
    kernel: str, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, *_: object
) -> str | None:
    if reason := checks.not_float32_compute(x, weight, *(() if bias is None else (bias,))):
        return reason
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if x.stride(-1) != 1 or not state.is_contiguous() or not weight.is_contiguous():
        return "needs a contiguous last dimension, and contiguous weights and states"
    return None


@triton.jit(do_not_specialize=["num_rows"])
def _tile(x, weight, bias, state, rows, starts, y, num_rows, x_stride,
          C: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr,
          M: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """M tokens of one row and some channels; tiles count from a row's first token."""
    tile = tl.program_id(0)
    row = row_of_tile(starts, num_rows, tile, M)
    origin = tl.load(starts)
    row_start = tl.load(starts + row) - origin
    query_len = tl.load(starts + row + 1) - origin - row_start
    first = (tile - row_start // M - row) * M
    if first >= query_len:
        return
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_channels = c < C
    own = state + tl.load(rows + row).to(tl.int64) * (K - 1) * C + c
    mine = x + row_start.to(tl.int64) * x_stride + c
    i = first + tl.arange(0, M)
    total = tl.zeros([M, BLOCK], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + c, mask=in_channels, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(K):
        w = tl.load(weight + c * K + j, mask=in_channels, other=0.0).to(tl.float32)
        p = (i - (K - 1) + j)[:, None]
        here = (p >= 0) & (p < query_len) & in_channels[None, :]
        tap = tl.load(mine[None, :] + p.to(tl.int64) * x_stride, mask=here, other=0.0).to(tl.float32)
        if first < K - 1:
            before = (p < 0) & in_channels[None, :]
            tap += tl.load(own[None, :] + (K - 1 + p) * C, mask=before, other=0.0)
        total += tap * w[None, :]
    out = y + (row_start + i).to(tl.int64)[:, None] * C + c[None, :]
    held = (i < query_len)[:, None] & in_channels[None, :]
    tl.store(out, (total / (1 + tl.exp(-total))).to(y.dtype.element_ty), mask=held)
    if first == 0:
        tl.debug_barrier()  # every thread has read the old state
        # A channel is one thread's, and input j of the new state is input j + query_len of the old one and x.
        for j in tl.static_range(K - 1):
            place = query_len - (K - 1) + j
            kept = tl.load(own + (j + query_len) * C, mask=in_channels & (place < 0), other=0.0)
            new = tl.load(mine + place.to(tl.int64) * x_stride, mask=in_channels & (place >= 0), other=0.0)
            tl.store(own + j * C, kept + new.to(tl.float32), mask=in_channels)


@triton.jit
def _step(x, weight, bias, state, rows, y, x_stride,
          C: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
          OVERLAPS: tl.constexpr):  # fmt: skip
    """One token of one row, for some channels."""
    follow(OVERLAPS)
    b = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = c < C
    own = state + tl.load(rows + b).to(tl.int64) * (K - 1) * C + c
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + c, mask=mask, other=0.0).to(tl.float32)
    for j in tl.static_range(K - 1):
        tap = tl.load(own + j * C, mask=mask, other=0.0)
        total += tap * tl.load(weight + c * K + j, mask=mask, other=0.0).to(tl.float32)
        if j > 0:
            tl.store(own + (j - 1) * C, tap, mask=mask)
    new = tl.load(x + b * x_stride + c, mask=mask, other=0.0).to(tl.float32)
    total += new * tl.load(weight + c * K + K - 1, mask=mask, other=0.0).to(tl.float32)
    tl.store(own + (K - 2) * C, new, mask=mask)
    tl.store(y + b * C + c, (total / (1 + tl.exp(-total))).to(y.dtype.element_ty), mask=mask)


def causal_conv1d(
    x_TC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    state_RPC: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    (num_tokens, channels), num_rows = x_TC.shape, rows_B.shape[0]
    y_TC = x_TC.new_empty(x_TC.shape)
    if num_tokens == 0:
        return y_TC
    block = min(CHANNELS, power_of_two(channels))
    _tile[(num_tokens // TOKENS + num_rows, triton.cdiv(channels, block))](
        x_TC, weight_CK, bias_C, state_RPC, rows_B, query_starts_B1, y_TC, num_rows, x_TC.stride(0),
        C=channels, K=weight_CK.shape[1], HAS_BIAS=bias_C is not None, M=TOKENS, BLOCK=block,
    )  # fmt: skip
    return y_TC


def causal_conv1d_update(
    x_BC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, state_RPC: Tensor, rows_B: Tensor
) -> Tensor:
    num_rows, channels = x_BC.shape
    y_BC = x_BC.new_empty(x_BC.shape)
    if num_rows == 0:
        return y_BC
    block = min(STEP_CHANNELS, power_of_two(channels))
    _step[(triton.cdiv(channels, block), num_rows)](
        x_BC, weight_CK, bias_C, state_RPC, rows_B, y_BC, x_BC.stride(0),
        C=channels, K=weight_CK.shape[1], HAS_BIAS=bias_C is not None, BLOCK=block,
        **overlap(x_BC.device),
    )  # fmt: skip
    return y_BC
