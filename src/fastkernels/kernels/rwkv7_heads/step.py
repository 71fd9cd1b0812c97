"""rwkv7_step in Triton: a program has one head of one row, from its rows of the low-rank weights to its
output.

Weights come once from memory, and from L2 for the other rows of the step.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import tanh
from fastkernels.kernels.launch import power_of_two
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.rwkv7.triton import WIDEST, advanced
from fastkernels.kernels.rwkv7_heads.triton import gated, read_out

WARPS, COLUMNS = 8, 64  # of a low-rank weight at a time


def unsupported(
    kernel: str,
    projected: Tensor,
    v_first: Tensor | None,
    ups: Sequence[Tensor],
    biases: Sequence[Tensor],
    k_k: Tensor,
    k_a: Tensor,
    r_k: Tensor,
    weight: Tensor,
    bias: Tensor,
    state: Tensor,
    *_: object,
) -> str | None:
    parameters = (*ups, *biases, k_k, k_a, r_k, weight, bias)
    if reason := checks.not_float32_compute(projected, *parameters, *(() if v_first is None else (v_first,))):
        return reason
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if not all(x.is_contiguous() for x in (*parameters, state)) or projected.stride(-1) != 1:
        return "needs contiguous parameters and states"
    if r_k.shape[1] > WIDEST:
        return f"serves heads of up to {WIDEST}, not {r_k.shape[1]}"
    return None


@triton.jit
def _product(low, weight, c, mask, RANK: tl.constexpr, COLUMNS: tl.constexpr, NAME: tl.constexpr):
    """[1, K]: the channels c of act(low) W^T."""
    j = tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([c.shape[0], COLUMNS], tl.float32)
    for begin in tl.static_range(0, RANK, COLUMNS):
        inside = begin + j < RANK
        x = tl.load(low + begin + j, mask=inside, other=0.0).to(tl.float32)
        if NAME == "tanh":
            x = tanh(x)
        if NAME == "sigmoid":
            x = tl.sigmoid(x)
        at = weight + c[:, None] * RANK + begin + j
        sums += tl.load(at, mask=inside & mask[:, None], other=0.0).to(tl.float32) * x
    return tl.sum(sums, axis=1)[None, :]


@triton.jit
def _step(projected, first, w_up, a_up, g_up, v_up, w_bias, a_bias, v_bias, k_k, k_a, r_k, weight, bias,
          state, rows, y, eps, stride, first_stride,
          H: tl.constexpr, K: tl.constexpr, W: tl.constexpr, A: tl.constexpr, G: tl.constexpr,
          V: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    head, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = tl.arange(0, WIDTH)
    inside, c = i < K, head * K + i
    s_at = state + ((tl.load(rows + b).to(tl.int64) * H + head) * K + i)[:, None] * K + i[None, :]
    mask = inside[:, None] & inside[None, :]
    s = tl.load(s_at, mask=mask, other=0.0)

    own, D = projected + b * stride, H * K
    r = tl.load(own + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    k = tl.load(own + D + W + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    v = tl.load(own + 2 * D + W + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    low = own + 3 * D + W
    if V > 0:
        share = tl.load(v_bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
        share = tl.sigmoid(share + _product(low, v_up, c, inside, V, COLUMNS, "none"))
        at = first + b * first_stride + c
        v += (tl.load(at, mask=inside, other=0.0).to(tl.float32)[None, :] - v) * share
    w = tl.load(w_bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    w += _product(own + D, w_up, c, inside, W, COLUMNS, "tanh")
    a = tl.load(a_bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    a += _product(low + V, a_up, c, inside, A, COLUMNS, "none")
    g = _product(low + V + A, g_up, c, inside, G, COLUMNS, "sigmoid")

    of_keys = tl.load(k_k + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    of_rates = tl.load(k_a + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    w, k, kk, a = gated(k, w, a, of_keys, of_rates)
    s, o = advanced(s, _flat(r), _flat(w), _flat(k), _flat(v), _flat(kk), _flat(a))
    tl.store(s_at, s, mask=mask)
    of_pairs = tl.load(r_k + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    scale = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    shift = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    found = read_out(o[None, :], r, k, v, g, of_pairs, scale, shift, inside[None, :], eps, K)
    tl.store(y + b * D + c[None, :], found.to(y.dtype.element_ty), mask=inside[None, :])


@triton.jit
def _flat(x):
    return tl.reshape(x, [x.shape[1]])


def rwkv7_step(
    projected_BN: Tensor,
    v_first_BD: Tensor | None,
    ups: Sequence[Tensor],
    biases: Sequence[Tensor],
    k_k_D: Tensor,
    k_a_D: Tensor,
    r_k_HK: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    state_RHKK: Tensor,
    rows_B: Tensor,
    eps: float,
) -> Tensor:
    num_rows, (heads, size) = len(projected_BN), r_k_HK.shape
    y_BD = projected_BN.new_empty(num_rows, heads * size)
    if num_rows == 0:
        return y_BD
    w_up, a_up, g_up, *v_up = ups
    w_bias, a_bias, *v_bias = biases
    _step[(heads, num_rows)](
        projected_BN, v_first_BD, w_up, a_up, g_up, v_up[0] if v_up else None, w_bias, a_bias,
        v_bias[0] if v_bias else None, k_k_D, k_a_D, r_k_HK, weight_D, bias_D, state_RHKK, rows_B, y_BD, eps,
        projected_BN.stride(0), 0 if v_first_BD is None else v_first_BD.stride(0),
        H=heads, K=size, W=w_up.shape[1], A=a_up.shape[1], G=g_up.shape[1],
        V=v_up[0].shape[1] if v_up else 0, WIDTH=power_of_two(size), COLUMNS=COLUMNS, num_warps=WARPS,
        **overlap(projected_BN.device),
    )  # fmt: skip
    return y_BD
