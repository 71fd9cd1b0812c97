"""log_confidence in Triton: a program streams one row, once.

Each lane keeps its largest logit and, apart from it, the sum of the others' exponentials. The lanes' largest
are put together in the end, all but one of them as summands.
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


def unsupported(kernel: str, logits_TV: Tensor, ids_T: Tensor) -> str | None:
    if logits_TV.stride(-1) != 1:
        return "the last dimension of the logits must be contiguous"
    return checks.not_float32_compute(logits_TV)


@triton.jit
def _stream(logits, ids, out, stride, V: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    lane = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    others = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        value = tl.load(logits + start + lane, mask=start + lane < V, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, value)
        # While a lane has seen nothing but -inf, -inf - -inf must not make NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        others = others * tl.exp(highest - shift) + tl.exp(tl.minimum(highest, value) - shift)
        highest = higher
    top = tl.max(highest, axis=0)
    first = tl.min(tl.where(highest == top, lane, BLOCK), axis=0)
    weight = tl.exp(highest - top)
    rest = tl.sum(others * weight + tl.where(lane == first, 0.0, weight), axis=0)
    # log(1 + rest) to the last bit also where 1 + rest is rounded (Kahan).
    sum_ = 1.0 + rest
    ratio = tl.where(sum_ == 1.0, 1.0, rest / tl.where(sum_ == 1.0, 1.0, sum_ - 1.0))
    log1p = tl.where(sum_ == 1.0, rest, tl.log(sum_) * ratio)
    chosen = tl.load(logits + tl.load(ids + row)).to(tl.float32)
    tl.store(out + row, chosen - top - log1p)


def log_confidence(logits_TV: Tensor, ids_T: Tensor) -> Tensor:
    rows, vocabulary = logits_TV.shape
    out_T = logits_TV.new_empty((rows,), dtype=torch.float32)
    if rows:
        block = min(MOST_LANES, power_of_two(vocabulary))
        _stream[(rows,)](
            logits_TV,
            ids_T.contiguous(),
            out_T,
            logits_TV.stride(0),
            V=vocabulary,
            BLOCK=block,
            **warps(block),
        )
    return out_T
