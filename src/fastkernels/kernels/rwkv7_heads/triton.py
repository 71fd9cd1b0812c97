"""rwkv7_inputs and rwkv7_output in Triton: a program has some tokens of one head.

T tokens · H heads of K channels.
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

STEEPEST = tl.constexpr(-0.6065306597126334)
TOKENS = 16


def unsupported(kernel: str, *args: Tensor | int | float | None) -> str | None:
    tensors = [x for x in args if isinstance(x, Tensor)]
    if any(x.stride(-1) != 1 for x in tensors):
        return "needs a contiguous last dimension"
    return checks.not_float32_compute(*tensors)


@triton.jit
def gated(k, w, a, k_k, k_a):
    """w, k, kk and a of tokens [.., K] in float32, as the recurrence takes them."""
    a = tl.sigmoid(a)
    kk = k * k_k
    length = tl.sqrt(tl.sum(kk * kk, axis=1, keep_dims=True))
    kk = kk / tl.maximum(length, 1e-12)
    return tl.sigmoid(w) * STEEPEST, k * (1 + (a - 1) * k_a), kk, a


@triton.jit
def read_out(o, r, k, v, g, r_k, weight, bias, mask, eps, K: tl.constexpr):
    """y of tokens [.., K] in float32; zeros behind K channels."""
    mean = tl.sum(o, axis=1, keep_dims=True) / K
    centred = tl.where(mask, o - mean, 0.0)
    variance = tl.sum(centred * centred, axis=1, keep_dims=True) / K
    normed = centred * tl.rsqrt(variance + eps) * weight + bias
    return (normed + tl.sum(r * k * r_k, axis=1, keep_dims=True) * v) * g


@triton.jit
def _inputs(key, value, decay, rate, gate, first, k_k, k_a, w_out, k_out, v_out, kk_out, a_out, T,
            k_stride, v_stride, w_stride, a_stride, gate_stride, first_stride,
            D: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
            OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    t = (tl.program_id(0).to(tl.int64) * COUNT + tl.arange(0, COUNT))[:, None]
    i = tl.arange(0, WIDTH)[None, :]
    c = tl.program_id(1) * K + i
    mask = (t < T) & (i < K)
    k = tl.load(key + t * k_stride + c, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(value + t * v_stride + c, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(decay + t * w_stride + c, mask=mask, other=0.0).to(tl.float32)
    a = tl.load(rate + t * a_stride + c, mask=mask, other=0.0).to(tl.float32)
    of_keys = tl.load(k_k + c, mask=i < K, other=0.0).to(tl.float32)
    of_rates = tl.load(k_a + c, mask=i < K, other=0.0).to(tl.float32)
    if gate is not None:
        share = tl.sigmoid(tl.load(gate + t * gate_stride + c, mask=mask, other=0.0).to(tl.float32))
        v += (tl.load(first + t * first_stride + c, mask=mask, other=0.0).to(tl.float32) - v) * share
    w, k, kk, a = gated(k, w, a, of_keys, of_rates)
    at = t * D + c
    tl.store(w_out + at, w.to(w_out.dtype.element_ty), mask=mask)
    tl.store(k_out + at, k.to(k_out.dtype.element_ty), mask=mask)
    tl.store(v_out + at, v.to(v_out.dtype.element_ty), mask=mask)
    tl.store(kk_out + at, kk.to(kk_out.dtype.element_ty), mask=mask)
    tl.store(a_out + at, a.to(a_out.dtype.element_ty), mask=mask)


@triton.jit
def _output(read, receptance, key, value, gate, r_k, weight, bias, y, T, eps,
            o_stride, r_stride, k_stride, v_stride, g_stride,
            D: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
            OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    t = (tl.program_id(0).to(tl.int64) * COUNT + tl.arange(0, COUNT))[:, None]
    i = tl.arange(0, WIDTH)[None, :]
    c = tl.program_id(1) * K + i
    mask = (t < T) & (i < K)
    o = tl.load(read + t * o_stride + c, mask=mask, other=0.0).to(tl.float32)
    r = tl.load(receptance + t * r_stride + c, mask=mask, other=0.0).to(tl.float32)
    k = tl.load(key + t * k_stride + c, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(value + t * v_stride + c, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gate + t * g_stride + c, mask=mask, other=0.0).to(tl.float32)
    of_pairs = tl.load(r_k + c, mask=i < K, other=0.0).to(tl.float32)
    scale = tl.load(weight + c, mask=i < K, other=0.0).to(tl.float32)
    shift = tl.load(bias + c, mask=i < K, other=0.0).to(tl.float32)
    found = read_out(o, r, k, v, g, of_pairs, scale, shift, mask, eps, K)
    tl.store(y + t * D + c, found.to(y.dtype.element_ty), mask=mask)


def rwkv7_inputs(
    k_TD: Tensor,
    v_TD: Tensor,
    w_TD: Tensor,
    a_TD: Tensor,
    gate_TD: Tensor | None,
    v_first_TD: Tensor | None,
    k_k_D: Tensor,
    k_a_D: Tensor,
    heads: int,
) -> tuple[Tensor, ...]:
    (num_tokens, width), device = k_TD.shape, k_TD.device
    found = tuple(torch.empty(k_TD.shape, dtype=k_TD.dtype, device=device) for _ in range(5))
    given = (k_TD, v_TD, w_TD, a_TD, gate_TD, v_first_TD)
    if num_tokens:
        _inputs[(triton.cdiv(num_tokens, TOKENS), heads)](
            *given, k_k_D, k_a_D, *found, num_tokens, *(0 if x is None else x.stride(0) for x in given),
            D=width, K=width // heads, WIDTH=power_of_two(width // heads), COUNT=TOKENS, **overlap(device),
        )  # fmt: skip
    return found


def rwkv7_output(
    o_TD: Tensor,
    r_TD: Tensor,
    k_TD: Tensor,
    v_TD: Tensor,
    g_TD: Tensor,
    r_k_HK: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> Tensor:
    (num_tokens, width), (heads, size) = o_TD.shape, r_k_HK.shape
    y_TD = torch.empty(o_TD.shape, dtype=o_TD.dtype, device=o_TD.device)
    given = (o_TD, r_TD, k_TD, v_TD, g_TD)
    if num_tokens:
        _output[(triton.cdiv(num_tokens, TOKENS), heads)](
            *given, r_k_HK, weight_D, bias_D, y_TD, num_tokens, eps, *(x.stride(0) for x in given),
            D=width, K=size, WIDTH=power_of_two(size), COUNT=TOKENS, **overlap(o_TD.device),
        )  # fmt: skip
    return y_TD
