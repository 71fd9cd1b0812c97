"""selective_scan and selective_state_update for GPUs: a program keeps the states of some channels in
registers and walks the tokens of a row, a chunk at a time.

    h[t] = P[t] h + Q[t]        (P, Q)[t] = (a[t], b[t]) . (P, Q)[t-1]        (a, b) . (p, q) = (a p, a q + b)

with a = exp(step A) and b = step u B of a token, h the state before the chunk: P and Q come from a parallel
scan over the chunk. A differs for every channel and value of a state, so there is no matrix product in it.
Where a chunk has no token, the step is 0: a is 1 and b is 0.
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

CHUNK, BLOCK = 16, 32  # tokens and channels of a program: 32 channels are two sectors of a row in bf16
STEP_BLOCK = 64
WIDEST_STATE = 256
ELEMENTS_OF_A_WARP = 512


def unsupported(
    kernel: str, u: Tensor, delta: Tensor, b: Tensor, c: Tensor, z: Tensor, a_log: Tensor, d: Tensor,
    bias: Tensor, state: Tensor, *_: object,
) -> str | None:  # fmt: skip
    if reason := checks.not_float32_compute(u, delta, b, c, z, d, bias):
        return reason
    if state.dtype != torch.float32 or a_log.dtype != torch.float32:
        return f"keeps states and A_log in float32, not {state.dtype} and {a_log.dtype}"
    if any(x.stride(-1) != 1 for x in (u, delta, b, c, z)):
        return "needs a contiguous last dimension"
    if not (state.is_contiguous() and a_log.is_contiguous()):
        return "needs contiguous states and A_log"
    if state.shape[-1] > WIDEST_STATE:
        return f"serves states of up to {WIDEST_STATE} values a channel, not {state.shape[-1]}"
    return None


@triton.jit
def softplus(x):
    # log(1 + e) would lose the digits of a small e. It is 2 atanh(s), s at most 1/3: eight terms are exact.
    e = tl.exp(-tl.abs(x))
    s = e / (2 + e)
    w = s * s
    series = 1 / 9 + w * (1 / 11 + w * (1 / 13 + w / 15))
    return tl.maximum(x, 0.0) + 2 * s * (1 + w * (1 / 3 + w * (1 / 5 + w * (1 / 7 + w * series))))


@triton.jit
def _silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def _then(p, q, a, b):
    """First (p, q), then (a, b)."""
    return p * a, q * a + b


@triton.jit
def _walk(u, delta, b_in, c_out, z, a_log, d, bias, state, rows, starts, y,
          u_stride, delta_stride, b_stride, c_stride, z_stride,
          CHANNELS: tl.constexpr, N: tl.constexpr, L: tl.constexpr, BLOCK: tl.constexpr,
          VALUES: tl.constexpr):  # fmt: skip
    """All tokens of one row, for some channels. Axes of the scan: tokens, channels, values of a state."""
    r = tl.program_id(1)
    i, n, t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, VALUES), tl.arange(0, L)
    in_i, in_n = i < CHANNELS, n < N
    row_start = (tl.load(starts + r) - tl.load(starts)).to(tl.int64)
    query_len = tl.load(starts + r + 1) - tl.load(starts + r)
    at = (tl.load(rows + r).to(tl.int64) * CHANNELS + i)[:, None] * N + n[None, :]
    in_state = in_i[:, None] & in_n[None, :]
    h = tl.load(state + at, mask=in_state, other=0.0)
    a = -tl.exp(tl.load(a_log + i[:, None] * N + n[None, :], mask=in_state, other=0.0))
    skip = tl.load(d + i, mask=in_i, other=0.0).to(tl.float32)[None, :]
    bias_i = tl.load(bias + i, mask=in_i, other=0.0).to(tl.float32)[None, :]
    for first in range(0, query_len, L):
        token = (row_start + first + t)[:, None]
        real = (first + t < query_len)[:, None]
        held, values = real & in_i[None, :], real & in_n[None, :]
        x = tl.load(u + token * u_stride + i[None, :], mask=held, other=0.0).to(tl.float32)
        raw = tl.load(delta + token * delta_stride + i[None, :], mask=held, other=0.0).to(tl.float32)
        gate = tl.load(z + token * z_stride + i[None, :], mask=held, other=0.0).to(tl.float32)
        b = tl.load(b_in + token * b_stride + n[None, :], mask=values, other=0.0).to(tl.float32)
        c = tl.load(c_out + token * c_stride + n[None, :], mask=values, other=0.0).to(tl.float32)
        step = tl.where(held, softplus(raw + bias_i), 0.0)
        decay = tl.exp(step[:, :, None] * a[None, :, :])
        added = (step * x)[:, :, None] * b[:, None, :]
        p, q = tl.associative_scan((decay, added), 0, _then)
        states = p * h[None, :, :] + q
        out = (tl.sum(states * c[:, None, :], axis=2) + skip * x) * _silu(gate)
        tl.store(y + token * CHANNELS + i[None, :], out.to(y.dtype.element_ty), mask=held)
        h = tl.sum(tl.where((t == L - 1)[:, None, None], states, 0.0), axis=0)
    tl.store(state + at, h, mask=in_state)


@triton.jit
def _step(u, delta, b_in, c_out, z, a_log, d, bias, state, rows, y,
          u_stride, delta_stride, b_stride, c_stride, z_stride,
          CHANNELS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, VALUES: tl.constexpr,
          OVERLAPS: tl.constexpr):  # fmt: skip
    """One token of one row, for some channels."""
    follow(OVERLAPS)
    r = tl.program_id(1).to(tl.int64)
    i, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, VALUES)
    in_i, in_n = i < CHANNELS, n < N
    at = (tl.load(rows + r).to(tl.int64) * CHANNELS + i)[:, None] * N + n[None, :]
    in_state = in_i[:, None] & in_n[None, :]
    h = tl.load(state + at, mask=in_state, other=0.0)
    a = -tl.exp(tl.load(a_log + i[:, None] * N + n[None, :], mask=in_state, other=0.0))
    x = tl.load(u + r * u_stride + i, mask=in_i, other=0.0).to(tl.float32)
    raw = tl.load(delta + r * delta_stride + i, mask=in_i, other=0.0).to(tl.float32)
    gate = tl.load(z + r * z_stride + i, mask=in_i, other=0.0).to(tl.float32)
    b = tl.load(b_in + r * b_stride + n, mask=in_n, other=0.0).to(tl.float32)
    c = tl.load(c_out + r * c_stride + n, mask=in_n, other=0.0).to(tl.float32)
    skip = tl.load(d + i, mask=in_i, other=0.0).to(tl.float32)
    step = softplus(raw + tl.load(bias + i, mask=in_i, other=0.0).to(tl.float32))
    h = tl.exp(step[:, None] * a) * h + (step * x)[:, None] * b[None, :]
    tl.store(state + at, h, mask=in_state)
    out = (tl.sum(h * c[None, :], axis=1) + skip * x) * _silu(gate)
    tl.store(y + r * CHANNELS + i, out.to(y.dtype.element_ty), mask=in_i)


def selective_scan(
    u_TI: Tensor,
    delta_TI: Tensor,
    B_TN: Tensor,
    C_TN: Tensor,
    z_TI: Tensor,
    A_log_IN: Tensor,
    D_I: Tensor,
    delta_bias_I: Tensor,
    state_RIN: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    (num_tokens, channels), values = u_TI.shape, state_RIN.shape[-1]
    y_TI = u_TI.new_empty(u_TI.shape)
    if num_tokens == 0:
        return y_TI
    block, width = min(BLOCK, power_of_two(channels)), power_of_two(values)
    _walk[(triton.cdiv(channels, block), rows_B.shape[0])](
        u_TI, delta_TI, B_TN, C_TN, z_TI, A_log_IN, D_I, delta_bias_I, state_RIN, rows_B, query_starts_B1,
        y_TI, *(x.stride(0) for x in (u_TI, delta_TI, B_TN, C_TN, z_TI)), CHANNELS=channels, N=values,
        L=CHUNK, BLOCK=block, VALUES=width, num_warps=warps(CHUNK * block * width),
    )  # fmt: skip
    return y_TI


def selective_state_update(
    u_BI: Tensor,
    delta_BI: Tensor,
    B_BN: Tensor,
    C_BN: Tensor,
    z_BI: Tensor,
    A_log_IN: Tensor,
    D_I: Tensor,
    delta_bias_I: Tensor,
    state_RIN: Tensor,
    rows_B: Tensor,
) -> Tensor:
    (num_rows, channels), values = u_BI.shape, state_RIN.shape[-1]
    y_BI = u_BI.new_empty(u_BI.shape)
    if num_rows == 0:
        return y_BI
    block, width = min(STEP_BLOCK, power_of_two(channels)), power_of_two(values)
    _step[(triton.cdiv(channels, block), num_rows)](
        u_BI, delta_BI, B_BN, C_BN, z_BI, A_log_IN, D_I, delta_bias_I,
        state_RIN, rows_B, y_BI,
        *(x.stride(0) for x in (u_BI, delta_BI, B_BN, C_BN, z_BI)),
        CHANNELS=channels, N=values, BLOCK=block, VALUES=width, num_warps=warps(block * width),
        **overlap(u_BI.device),
    )  # fmt: skip
    return y_BI


def warps(elements: int) -> int:
    return max(1, min(8, elements // ELEMENTS_OF_A_WARP))
