"""frame_attention in Triton: a program has one query of one head, and all of its keys in registers.

N places · T new frames of S · H heads · K head dim. Clips are short, so nothing is split and no maximum is
carried along; with one new frame every key and value is read once.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import power_of_two, warps

MOST_VALUES = 8192  # of a tile of keys: 64 registers of each of 128 threads


def unsupported(kernel: str, q_NTHK: Tensor, k_NSHK: Tensor, v_NSHK: Tensor, scale: float) -> str | None:
    if any(x.stride(-1) != 1 for x in (q_NTHK, k_NSHK, v_NSHK)):
        return "needs a contiguous last dimension"
    frames, size = k_NSHK.shape[1], k_NSHK.shape[3]
    if power_of_two(frames) * power_of_two(size) > MOST_VALUES:
        return f"serves up to {MOST_VALUES} values of a head's keys, not {frames} frames of {size}"
    return checks.not_float32_compute(q_NTHK, k_NSHK, v_NSHK)


@triton.jit
def _attend(q, k, v, o, scale, q_stride_n, q_stride_t, q_stride_h, k_stride_n, k_stride_s, k_stride_h,
            v_stride_n, v_stride_s, v_stride_h, S, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
            FRAMES: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    head = tl.program_id(0) % H
    row = (tl.program_id(0) // H).to(tl.int64)
    n, t = row // T, row % T
    s, d = tl.arange(0, FRAMES), tl.arange(0, WIDTH)
    is_seen = s <= S - T + t
    mask = is_seen[:, None] & (d < K)[None, :]
    place = s.to(tl.int64)[:, None]
    key = tl.load(
        k + n * k_stride_n + place * k_stride_s + head * k_stride_h + d[None, :], mask=mask, other=0.0
    )
    value = tl.load(
        v + n * v_stride_n + place * v_stride_s + head * v_stride_h + d[None, :], mask=mask, other=0.0
    )
    query = tl.load(q + n * q_stride_n + t * q_stride_t + head * q_stride_h + d, mask=d < K, other=0.0)
    score = tl.sum(key.to(tl.float32) * query.to(tl.float32)[None, :], axis=1) * scale
    score = tl.where(is_seen, score, float("-inf"))
    weight = tl.exp(score - tl.max(score, axis=0))
    result = tl.sum(value.to(tl.float32) * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(o + (row * H + head) * K + d, result.to(o.dtype.element_ty), mask=d < K)


def frame_attention(q_NTHK: Tensor, k_NSHK: Tensor, v_NSHK: Tensor, scale: float) -> Tensor:
    places, new, heads, size = q_NTHK.shape
    o_NTHK = q_NTHK.new_empty(q_NTHK.shape)
    if o_NTHK.numel() == 0:
        return o_NTHK
    frames, width = power_of_two(k_NSHK.shape[1]), power_of_two(size)
    _attend[(places * new * heads,)](
        q_NTHK, k_NSHK, v_NSHK, o_NTHK, scale, *q_NTHK.stride()[:3], *k_NSHK.stride()[:3],
        *v_NSHK.stride()[:3], k_NSHK.shape[1], T=new, H=heads, K=size, FRAMES=frames, WIDTH=width,
        **warps(frames * width),
    )  # fmt: skip
    return o_NTHK
