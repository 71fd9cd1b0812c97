"""topk_scores in Triton: a program holds the scores of some rows in registers and takes the best k times, as
topk_softmax_triton.py does.

T rows · E experts · k of them.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two, rows_in_a_tile, warps
from fastkernels.kernels.topk_scores import LEAST

MOST_EXPERTS = 4096  # a row lies in the registers of one program


def unsupported(kernel: str, scores_TE: Tensor, choice_TE: Tensor, *_: object) -> str | None:
    if scores_TE.shape[1] > MOST_EXPERTS:
        return f"serves up to {MOST_EXPERTS} experts, not {scores_TE.shape[1]}"
    if scores_TE.stride(-1) != 1 or choice_TE.stride(-1) != 1:
        return "needs a contiguous last dimension"
    return checks.not_float32_compute(scores_TE, choice_TE)


@triton.jit(do_not_specialize=["count"])
def _choose(scores, choice, weights, ids, count, scale, scores_stride, choice_stride, E: tl.constexpr,
            K: tl.constexpr, RENORMALIZE: tl.constexpr, LEAST: tl.constexpr, ROWS: tl.constexpr,
            WIDTH: tl.constexpr, SLOTS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert, slot = tl.arange(0, WIDTH), tl.arange(0, SLOTS)
    real = (expert < E)[None, :]
    mask = (row < count)[:, None] & real
    score = tl.load(scores + row[:, None] * scores_stride + expert[None, :], mask=mask, other=0.0)
    best_by = tl.load(choice + row[:, None] * choice_stride + expert[None, :], mask=mask, other=0.0)
    score, best_by = score.to(tl.float32), best_by.to(tl.float32)
    best_by = tl.where(best_by != best_by, float("-inf"), best_by)
    # Chosen experts leave; -inf stays above them, so that k ids are distinct and valid whatever scores are.
    free = tl.broadcast_to(real, [ROWS, WIDTH])
    chosen = tl.zeros([ROWS, SLOTS], tl.int32)
    weight = tl.zeros([ROWS, SLOTS], tl.float32)
    for k in tl.static_range(K):
        best = tl.max(tl.where(free, best_by, float("-inf")), axis=1)
        is_best = free & (best_by == best[:, None])
        first = tl.min(tl.where(is_best, expert[None, :], WIDTH), axis=1)
        taken = expert[None, :] == first[:, None]
        chosen = tl.where((slot == k)[None, :], first[:, None], chosen)
        weight = tl.where((slot == k)[None, :], tl.sum(tl.where(taken, score, 0.0), axis=1)[:, None], weight)
        free = free & (expert[None, :] != first[:, None])
    if RENORMALIZE:
        weight = weight / (tl.sum(weight, axis=1) + LEAST)[:, None]
    out = row[:, None] * K + slot[None, :]
    mask = (row < count)[:, None] & (slot < K)[None, :]
    tl.store(weights + out, weight * scale, mask=mask)
    tl.store(ids + out, chosen, mask=mask)


def topk_scores(
    scores_TE: Tensor, choice_TE: Tensor, top_k: int, renormalize: bool, scale: float
) -> tuple[Tensor, Tensor]:
    tokens, experts = scores_TE.shape
    weights_TK = scores_TE.new_empty((tokens, top_k), dtype=torch.float32)
    ids_TK = scores_TE.new_empty((tokens, top_k), dtype=torch.int32)
    if tokens == 0:
        return weights_TK, ids_TK
    width = power_of_two(experts)
    rows = rows_in_a_tile(tokens, width, scores_TE)
    _choose[(ceil_div(tokens, rows),)](
        scores_TE, choice_TE, weights_TK, ids_TK, tokens, scale, scores_TE.stride(0), choice_TE.stride(0),
        E=experts, K=top_k, RENORMALIZE=renormalize, LEAST=LEAST, ROWS=rows, WIDTH=width,
        SLOTS=power_of_two(top_k), **warps(rows * width),
    )  # fmt: skip
    return weights_TK, ids_TK
