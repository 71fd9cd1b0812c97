"""linear_topk in Triton for the tokens of a decode step: one launch.

A program has one token and a part of its features. It leaves its part of the logits in float32; the last of a
token's programs adds them, in the order of the parts whoever it is, and chooses.

T tokens · D hidden · E experts · WIDTH of a row of logits
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.arrival import is_last
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.topk_softmax_triton import choice

# More tokens would read the weight from L2 once for each of them where a product reads it once.
MOST_ROWS = 32
MOST_EXPERTS = 512
TILE_ELEMENTS = 8192  # of the weight, in a step of four warps
FEATURES = 512  # of a program. Not measured on a GPU yet


def unsupported(
    kernel: str, x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None, top_k: int, renormalize: bool
) -> str | None:
    if x_TD.shape[0] > MOST_ROWS:
        return f"serves up to {MOST_ROWS} rows, not {x_TD.shape[0]}"
    if weight_ED.shape[0] > MOST_EXPERTS:
        return f"serves up to {MOST_EXPERTS} experts, not {weight_ED.shape[0]}"
    if x_TD.stride(-1) != 1 or weight_ED.stride(-1) != 1:
        return "needs contiguous last dimensions"
    return checks.not_float32_compute(x_TD, weight_ED, *(() if bias_E is None else (bias_E,)))


@triton.jit
def _route(x, weight, bias, partial, counters, weights, ids, D, x_stride, weight_stride, E: tl.constexpr,
           K: tl.constexpr, RENORMALIZE: tl.constexpr, PARTS: tl.constexpr, EACH: tl.constexpr,
           STEP: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    expert, d = tl.arange(0, WIDTH), tl.arange(0, STEP)
    real = expert < E
    logit_E = tl.zeros([WIDTH], tl.float32)
    for start in range(part * EACH, tl.minimum(part * EACH + EACH, D), STEP):
        inside = start + d < D
        x_D = tl.load(x + row * x_stride + start + d, mask=inside, other=0.0).to(tl.float32)
        at = weight + expert.to(tl.int64)[:, None] * weight_stride + (start + d)[None, :]
        weight_ED = tl.load(at, mask=real[:, None] & inside[None, :], other=0.0).to(tl.float32)
        logit_E += tl.sum(weight_ED * x_D[None, :], 1)
    if PARTS > 1:
        mine = partial + row * PARTS * WIDTH + expert
        tl.store(mine + part * WIDTH, logit_E)
        if not is_last(counters + row, PARTS):
            return
        logit_E = tl.zeros([WIDTH], tl.float32)
        for p in tl.static_range(PARTS):
            logit_E += tl.load(mine + p * WIDTH, cache_modifier=".cg")
    if bias is not None:
        logit_E += tl.load(bias + expert, mask=real, other=0.0).to(tl.float32)
    rounded_1E = logit_E.to(x.dtype.element_ty).to(tl.float32)[None, :]
    weight_1K, chosen_1K = choice(rounded_1E, 1.0, E, K, RENORMALIZE, 1, WIDTH, SLOTS)
    slot = tl.arange(0, SLOTS)[None, :]
    tl.store(weights + row * K + slot, weight_1K, mask=slot < K)
    tl.store(ids + row * K + slot, chosen_1K, mask=slot < K)


def linear_topk(
    x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None, top_k: int, renormalize: bool
) -> tuple[Tensor, Tensor]:
    rows, (experts, width) = x_TD.shape[0], weight_ED.shape
    weights_TK = x_TD.new_empty((rows, top_k), dtype=torch.float32)
    ids_TK = x_TD.new_empty((rows, top_k), dtype=torch.int32)
    if rows == 0:
        return weights_TK, ids_TK
    lanes = power_of_two(experts)
    parts, partial, counters = ceil_div(width, FEATURES), None, None
    if parts > 1:
        partial = x_TD.new_empty(rows * parts * lanes, dtype=torch.float32)
        counters = zeroed(rows, x_TD.device)
    _route[(rows, parts)](
        x_TD, weight_ED, bias_E, partial, counters, weights_TK, ids_TK, width, x_TD.stride(0),
        weight_ED.stride(0), E=experts, K=top_k, RENORMALIZE=renormalize, PARTS=parts, EACH=FEATURES,
        STEP=min(FEATURES, max(1, TILE_ELEMENTS // lanes)), WIDTH=lanes, SLOTS=power_of_two(top_k),
        num_warps=4, **overlap(x_TD.device),
    )  # fmt: skip
    return weights_TK, ids_TK
