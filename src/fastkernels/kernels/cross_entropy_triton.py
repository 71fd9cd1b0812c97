"""cross_entropy in Triton: a program streams one row twice, for its sum and for its gradient.

Each lane keeps the largest logit that it has seen and the sum of the exponentials. The second pass reads a
row that a GPU's L2 cache still holds: 256 KB of bfloat16 for 128,256 logits.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import power_of_two, warps

MOST_LANES = 4096


def unsupported(kernel: str, logits_TV: Tensor, targets_T: Tensor) -> str | None:
    if logits_TV.stride(-1) != 1:
        return "the last dimension of the logits must be contiguous"
    return checks.not_float32_compute(logits_TV)


@triton.jit
def _stream(logits, targets, nll, slope, stride, share, V: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    slope += row * V
    lane = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        value = tl.load(logits + start + lane, mask=start + lane < V, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, value)
        # While a lane has seen nothing but -inf, -inf - -inf must not make NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(highest - shift) + tl.exp(value - shift)
        highest = higher
    top = tl.max(highest, axis=0)
    log_sum = tl.log(tl.sum(total * tl.exp(highest - top), axis=0))
    target = tl.load(targets + row)
    chosen = tl.load(logits + target).to(tl.float32) - top - log_sum
    tl.store(nll + row, -chosen)
    # exp(y) - 1 cancels where y is near 0; at -0.5 the series is wrong by 2e-7 of it.
    series = 1.0 + chosen / 7
    for k in tl.static_range(6, 1, -1):
        series = 1.0 + chosen / k * series
    less = tl.where(chosen > -0.5, chosen * series, tl.exp(chosen) - 1.0)
    for start in range(0, V, BLOCK):
        at = start + lane
        value = tl.load(logits + at, mask=at < V, other=float("-inf")).to(tl.float32)
        result = tl.where(at == target, less, tl.exp(value - top - log_sum)) * share
        tl.store(slope + at, result.to(slope.dtype.element_ty), mask=at < V)


def cross_entropy(logits_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    rows, vocabulary = logits_TV.shape
    nll_T = logits_TV.new_empty((rows,), dtype=torch.float32)
    slope_TV = logits_TV.new_empty(logits_TV.shape)
    if rows:
        block = min(MOST_LANES, power_of_two(vocabulary))
        _stream[(rows,)](
            logits_TV, targets_T.contiguous(), nll_T, slope_TV, logits_TV.stride(0), 1.0 / rows,
            V=vocabulary, BLOCK=block, **warps(block),
        )  # fmt: skip
    return nll_T, slope_TV
