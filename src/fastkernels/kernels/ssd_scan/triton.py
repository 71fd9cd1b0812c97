"""ssd_scan and ssd_state_update for GPUs: a program keeps the state of a head, or of some of its channels, in
registers, and walks the tokens of a row, a chunk at a time (torch.py has the mathematics of chunks).

One decay for a head: chunks are products of matrices, and heads are many enough to fill a GPU, so that no
chunk waits for memory that another program wrote. C B^T is computed by every program that needs it.
Where a chunk has no token its step is 0, which neither decays a state nor adds to it. For 16-bit inputs the
operands of products are rounded to 16 bits; every sum is in float32, that of the exponents in float64.
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
from fastkernels.kernels.selective_scan.triton import softplus

# By bytes of an element. 32-bit products do not go to the tensor cores, which would round the operands.
CHUNK, COLUMNS, WARPS = {2: 64, 4: 16}, {2: 64, 4: 32}, {2: 4, 4: 4}
LEAST = 16  # a side of a product, the least that tensor cores take
STEP_COLUMNS, STEP_ELEMENTS_OF_A_WARP = 32, 1024
WIDEST_STATE = 256


def unsupported(
    kernel: str, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a_log: Tensor, d: Tensor, bias: Tensor,
    state: Tensor, *_: object,
) -> str | None:  # fmt: skip
    if reason := checks.not_float32_compute(x, dt, b, c, d, bias):
        return reason
    if state.dtype != torch.float32 or a_log.dtype != torch.float32:
        return f"keeps states and A_log in float32, not {state.dtype} and {a_log.dtype}"
    if any(t.stride(-1) != 1 for t in (x, dt, b, c)) or not state.is_contiguous():
        return "needs a contiguous last dimension, and contiguous states"
    if state.shape[-1] > WIDEST_STATE:
        return f"serves states of up to {WIDEST_STATE} values a channel, not {state.shape[-1]}"
    return None


@triton.jit
def _walk(x_in, dt, b_in, c_out, a_log, d, bias, state, rows, starts, y,
          x_stride_t, x_stride_h, dt_stride, b_stride_t, b_stride_g, c_stride_t, c_stride_g,
          H: tl.constexpr, SHARED: tl.constexpr, P: tl.constexpr, N: tl.constexpr, L: tl.constexpr,
          COLUMNS: tl.constexpr, VALUES: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """All tokens of one row, for some channels of one head."""
    head, r = tl.program_id(1), tl.program_id(2)
    p, n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    in_p, in_n, t = p < P, n < N, tl.arange(0, L)
    row_start = (tl.load(starts + r) - tl.load(starts)).to(tl.int64)
    query_len = tl.load(starts + r + 1) - tl.load(starts + r)
    s_at = state + ((tl.load(rows + r).to(tl.int64) * H + head) * P + p)[:, None] * N + n[None, :]
    in_state = in_p[:, None] & in_n[None, :]
    s = tl.load(s_at, mask=in_state, other=0.0)
    a = -tl.exp(tl.load(a_log + head))
    skip, offset = tl.load(d + head).to(tl.float32), tl.load(bias + head).to(tl.float32)
    group = head // SHARED
    for first in range(0, query_len, L):
        # Within a chunk offsets fit 32 bits.
        real, token = first + t < query_len, row_start + first
        held, values = real[:, None] & in_p[None, :], real[:, None] & in_n[None, :]
        x_at = x_in + token * x_stride_t + head * x_stride_h
        b_at = b_in + token * b_stride_t + group * b_stride_g
        c_at = c_out + token * c_stride_t + group * c_stride_g
        x = tl.load(x_at + (t[:, None] * x_stride_t + p[None, :]), mask=held, other=0.0)
        b = tl.load(b_at + (t[:, None] * b_stride_t + n[None, :]), mask=values, other=0.0)
        c = tl.load(c_at + (t[:, None] * c_stride_t + n[None, :]), mask=values, other=0.0)
        raw = tl.load(dt + token * dt_stride + head + t * dt_stride, mask=real, other=0.0).to(tl.float32)
        step = tl.where(real, softplus(raw + offset), 0.0)
        sums = tl.cumsum((step * a).to(tl.float64), axis=0)
        total = tl.sum(tl.where(t == L - 1, sums, 0.0), axis=0)
        # At most 0 where j <= i; elsewhere it might overflow, and is not taken.
        high = sums.to(tl.float32)
        low = (sums - high).to(tl.float32)
        between = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
        weights = tl.exp(tl.minimum(between, 0.0)) * step[None, :]
        weights *= tl.dot(c, tl.trans(b), input_precision=PRECISION)
        weights = tl.where(t[:, None] >= t[None, :], weights, 0.0)
        out = tl.dot(c, tl.trans(s.to(c.dtype)), input_precision=PRECISION)
        out *= tl.exp(sums.to(tl.float32))[:, None]
        out = tl.dot(weights.to(x.dtype), x, out, input_precision=PRECISION)
        out += skip * x
        y_at = y + (token * H + head) * P
        tl.store(y_at + (t[:, None] * (H * P) + p[None, :]), out.to(y.dtype.element_ty), mask=held)
        kept = x * (tl.exp((total - sums).to(tl.float32)) * step)[:, None]
        s *= tl.exp(total.to(tl.float32))
        s = tl.dot(tl.trans(kept.to(b.dtype)), b, s, input_precision=PRECISION)
    tl.store(s_at, s, mask=in_state)


@triton.jit
def _step(x_in, dt, b_in, c_out, a_log, d, bias, state, rows, y,
          x_stride_t, x_stride_h, dt_stride, b_stride_t, b_stride_g, c_stride_t, c_stride_g,
          H: tl.constexpr, SHARED: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
          COLUMNS: tl.constexpr, VALUES: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    """One token of one row, for some channels of one head."""
    follow(OVERLAPS)
    head, r = tl.program_id(1), tl.program_id(2).to(tl.int64)
    p, n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    in_p, in_n = p < P, n < N
    s_at = state + ((tl.load(rows + r).to(tl.int64) * H + head) * P + p)[:, None] * N + n[None, :]
    in_state = in_p[:, None] & in_n[None, :]
    s = tl.load(s_at, mask=in_state, other=0.0)
    raw = tl.load(dt + r * dt_stride + head).to(tl.float32)
    step = softplus(raw + tl.load(bias + head).to(tl.float32))
    x = tl.load(x_in + r * x_stride_t + head * x_stride_h + p, mask=in_p, other=0.0).to(tl.float32)
    group = head // SHARED
    b = tl.load(b_in + r * b_stride_t + group * b_stride_g + n, mask=in_n, other=0.0).to(tl.float32)
    c = tl.load(c_out + r * c_stride_t + group * c_stride_g + n, mask=in_n, other=0.0).to(tl.float32)
    decay = tl.exp(-step * tl.exp(tl.load(a_log + head)))
    s = s * decay + (x * step)[:, None] * b[None, :]
    tl.store(s_at, s, mask=in_state)
    out = tl.sum(s * c[None, :], axis=1) + tl.load(d + head).to(tl.float32) * x
    tl.store(y + (r * H + head) * P + p, out.to(y.dtype.element_ty), mask=in_p)


def ssd_scan(
    x_THP: Tensor,
    dt_TH: Tensor,
    B_TGN: Tensor,
    C_TGN: Tensor,
    A_log_H: Tensor,
    D_H: Tensor,
    dt_bias_H: Tensor,
    state_RHPN: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    y_THP = x_THP.new_empty(x_THP.shape)
    if y_THP.numel() == 0:
        return y_THP
    size = x_THP.element_size()
    sizes, columns = _sizes(x_THP, B_TGN, COLUMNS[size])
    precision = "ieee" if size == 4 else "tf32"  # 16-bit operands have no other
    _walk[(triton.cdiv(x_THP.shape[2], columns), x_THP.shape[1], rows_B.shape[0])](
        x_THP, dt_TH, B_TGN, C_TGN, A_log_H, D_H, dt_bias_H, state_RHPN, rows_B, query_starts_B1, y_THP,
        *_strides(x_THP, dt_TH, B_TGN, C_TGN), L=CHUNK[size], **sizes, PRECISION=precision,
        num_warps=WARPS[size],
    )  # fmt: skip
    return y_THP


def ssd_state_update(
    x_BHP: Tensor,
    dt_BH: Tensor,
    B_BGN: Tensor,
    C_BGN: Tensor,
    A_log_H: Tensor,
    D_H: Tensor,
    dt_bias_H: Tensor,
    state_RHPN: Tensor,
    rows_B: Tensor,
) -> Tensor:
    y_BHP = x_BHP.new_empty(x_BHP.shape)
    if y_BHP.numel() == 0:
        return y_BHP
    sizes, columns = _sizes(x_BHP, B_BGN, STEP_COLUMNS)
    elements = columns * sizes["VALUES"]
    _step[(triton.cdiv(x_BHP.shape[2], columns), x_BHP.shape[1], rows_B.shape[0])](
        x_BHP, dt_BH, B_BGN, C_BGN, A_log_H, D_H, dt_bias_H, state_RHPN, rows_B, y_BHP,
        *_strides(x_BHP, dt_BH, B_BGN, C_BGN), **sizes,
        num_warps=max(1, min(8, elements // STEP_ELEMENTS_OF_A_WARP)), **overlap(x_BHP.device),
    )  # fmt: skip
    return y_BHP


def _sizes(x_THP: Tensor, b_TGN: Tensor, most_columns: int) -> tuple[dict[str, int], int]:
    """Constants of a launch, and channels of a program."""
    (_, heads, channels), (_, groups, values) = x_THP.shape, b_TGN.shape
    columns = max(LEAST, min(most_columns, power_of_two(channels)))
    padded = max(LEAST, power_of_two(values))
    shape = {"H": heads, "SHARED": heads // groups, "P": channels, "N": values}
    return {**shape, "COLUMNS": columns, "VALUES": padded}, columns


def _strides(x_THP: Tensor, dt_TH: Tensor, b_TGN: Tensor, c_TGN: Tensor) -> tuple[int, ...]:
    return (*x_THP.stride()[:2], dt_TH.stride(0), *b_TGN.stride()[:2], *c_TGN.stride()[:2])
