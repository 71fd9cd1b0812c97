"""topk_softmax in Triton: a program holds the logits of some rows in registers and takes the largest k times.

T rows · E experts · k of them. A row's logits are read once; ties fall to the lowest id, because the smallest
index that has the maximum is taken.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, rows_of, warps
from fastkernels.kernels.overlap import follow, overlap

# A row lies in the registers of one program; the largest published models have 512 experts.
MOST_EXPERTS = 4096


def unsupported(kernel: str, logits_TE: Tensor, *_: object) -> str | None:
    if logits_TE.shape[1] > MOST_EXPERTS:
        return f"serves up to {MOST_EXPERTS} experts, not {logits_TE.shape[1]}"
    return checks.not_float32_compute(logits_TE)


@triton.jit
def choice(logit, logit_scale, E: tl.constexpr, K: tl.constexpr, RENORMALIZE: tl.constexpr,
           ROWS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr):  # fmt: skip
    """Weights and ids [ROWS, SLOTS] of logits [ROWS, WIDTH] in float32."""
    expert, slot = tl.arange(0, WIDTH), tl.arange(0, SLOTS)
    real = (expert < E)[None, :]
    score = tl.where(logit != logit, float("-inf"), logit)
    highest = tl.max(tl.where(real, score, float("-inf")), axis=1)
    exponential = tl.where(real, tl.exp((logit - highest[:, None]) * logit_scale), 0.0)
    total = tl.sum(exponential, axis=1)

    # Chosen experts leave; -inf stays above them, so that k ids are distinct and valid whatever the logits.
    free = tl.broadcast_to(real, [ROWS, WIDTH])
    chosen = tl.zeros([ROWS, SLOTS], tl.int32)
    weight = tl.zeros([ROWS, SLOTS], tl.float32)
    for k in tl.static_range(K):
        best = tl.max(tl.where(free, score, float("-inf")), axis=1)
        is_best = free & (score == best[:, None])
        first = tl.min(tl.where(is_best, expert[None, :], WIDTH), axis=1)
        taken = expert[None, :] == first[:, None]
        probability = tl.sum(tl.where(taken, exponential, 0.0), axis=1)
        chosen = tl.where((slot == k)[None, :], first[:, None], chosen)
        weight = tl.where((slot == k)[None, :], probability[:, None], weight)
        free = free & (expert[None, :] != first[:, None])
    if RENORMALIZE:
        total = tl.sum(weight, axis=1)
    return weight / total[:, None], chosen


@triton.jit(do_not_specialize=["count"])
def _choose(logits, expert_scale, weights, ids, count, stride, logit_scale, E: tl.constexpr, K: tl.constexpr,
            RENORMALIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
            SLOTS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert, slot = tl.arange(0, WIDTH), tl.arange(0, SLOTS)
    # Rows past the end compute on zeros: nothing but -inf would make NaN.
    at = logits + row[:, None] * stride + expert[None, :]
    logit = tl.load(at, mask=(row < count)[:, None] & (expert < E)[None, :], other=0.0).to(tl.float32)
    weight, chosen = choice(logit, logit_scale, E, K, RENORMALIZE, ROWS, WIDTH, SLOTS)
    out = row[:, None] * K + slot[None, :]
    mask = (row < count)[:, None] & (slot < K)[None, :]
    if expert_scale is not None:
        weight *= tl.load(expert_scale + chosen, mask=mask, other=0.0).to(tl.float32)
    tl.store(weights + out, weight, mask=mask)
    tl.store(ids + out, chosen, mask=mask)


def topk_softmax(
    logits_TE: Tensor,
    top_k: int,
    renormalize: bool,
    logit_scale: float = 1.0,
    expert_scale_E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    tokens, experts = logits_TE.shape
    weights_TK = logits_TE.new_empty((tokens, top_k), dtype=torch.float32)
    ids_TK = logits_TE.new_empty((tokens, top_k), dtype=torch.int32)
    if tokens == 0:
        return weights_TK, ids_TK
    x, width = rows_of(logits_TE), power_of_two(experts)
    rows = rows_in_a_tile(tokens, width, logits_TE)
    _choose[(ceil_div(tokens, rows),)](
        x.tensor, expert_scale_E, weights_TK, ids_TK, tokens, x.outer_stride, logit_scale, E=experts,
        K=top_k, RENORMALIZE=renormalize,
        ROWS=rows, WIDTH=width, SLOTS=power_of_two(top_k), **warps(rows * width),
        **overlap(logits_TE.device),
    )  # fmt: skip
    return weights_TK, ids_TK
