"""top_k and top_p as a threshold in Triton: one program for each row narrows an interval of keys, no sort.

A float's key is the integer with the same order. With f(t) the count, or for top_p the weight, of the ids
whose key is at least t,

    t* = the largest t with f(t) >= target       target = k, or p times the weight of what top_k allows

is the key of the last allowed id. An interval [low, high) with f(low) >= target > f(high) is cut into four by
each pass over the row, until it holds one id or one key. Of equal keys the lowest ids are allowed, as many as
it takes to reach the target.

V vocabulary
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.launch import power_of_two
from fastkernels.kernels.sample.threshold import Threshold

BLOCK = 4096
WARPS = 16
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-(2**31))


@triton.jit
def _key(logit):
    bits = (logit + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0: they are equal
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _logit(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _block(row, start, V, last_key, last_id, BLOCK: tl.constexpr):
    """Logits, keys and ids of a block, and which of them `last_key` and `last_id` allow."""
    v = start + tl.arange(0, BLOCK)
    logit = tl.load(row + v, mask=v < V, other=float("-inf"))
    key = _key(logit)
    return logit, key, v, (v < V) & ((key > last_key) | ((key == last_key) & (v <= last_id)))


@triton.jit
def _weight(logit, top, sharpness, WEIGHTED: tl.constexpr):
    return tl.exp2((logit - top) * sharpness) if WEIGHTED else 1.0


@triton.jit
def _narrowed(row, V, low, high, target, top, sharpness, last_key, last_id,
              WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """(key, id) of the last id that it takes to reach the target, among those that are allowed so far.

    low, high: int64 keys; all allowed ids lie in [low, high).
    """
    reached = 0.0  # f(high)
    ids_low, ids_high = V + 0.0, 0.0  # how many keys are at least low, at least high
    while (high - low > 1) & (ids_low - ids_high > 1):
        width = high - low
        one, two, three = low + width // 4, low + width // 2, low + width * 3 // 4
        f1 = tl.zeros([BLOCK], tl.float32)
        f2, f3, n1, n2, n3 = f1, f1, f1, f1, f1
        for start in range(0, V, BLOCK):
            logit, key, _, allowed = _block(row, start, V, last_key, last_id, BLOCK)
            weight = _weight(logit, top, sharpness, WEIGHTED)
            above1 = allowed & (key >= one.to(tl.int32))
            above2 = allowed & (key >= two.to(tl.int32))
            above3 = allowed & (key >= three.to(tl.int32))
            n1 += above1.to(tl.float32)
            n2 += above2.to(tl.float32)
            n3 += above3.to(tl.float32)
            f1 += tl.where(above1, weight, 0.0)
            f2 += tl.where(above2, weight, 0.0)
            f3 += tl.where(above3, weight, 0.0)
        sum1, sum2, sum3 = tl.sum(f1), tl.sum(f2), tl.sum(f3)
        ids1, ids2, ids3 = tl.sum(n1), tl.sum(n2), tl.sum(n3)
        if sum3 >= target:
            low, ids_low = three, ids3
        elif sum2 >= target:
            low, ids_low = two, ids2
            high, reached, ids_high = three, sum3, ids3
        elif sum1 >= target:
            low, ids_low = one, ids1
            high, reached, ids_high = two, sum2, ids2
        else:
            high, reached, ids_high = one, sum1, ids1

    best_key = tl.full([BLOCK], LOWEST, tl.int32)
    best_id = tl.full([BLOCK], -1, tl.int32)
    ids = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        _, key, v, allowed = _block(row, start, V, last_key, last_id, BLOCK)
        inside = allowed & (key >= low) & (key < high)
        best_key = tl.maximum(best_key, tl.where(inside, key, LOWEST))
        best_id = tl.maximum(best_id, tl.where(inside, v, -1))
        ids += inside.to(tl.int32)
    key, last, count = tl.max(best_key), tl.max(best_id), tl.sum(ids)
    if count > 1:
        # Equal keys: the first `needed` of them.
        needed = tl.ceil((target - reached) / _weight(_logit(key), top, sharpness, WEIGHTED)).to(tl.int32)
        needed = tl.minimum(tl.maximum(needed, 1), count)
        before = 0
        for start in range(0, V, BLOCK):
            _, keys, v, allowed = _block(row, start, V, last_key, last_id, BLOCK)
            equal = (allowed & (keys == key)).to(tl.int32)
            here = tl.sum(equal)
            if (before < needed) & (needed <= before + here):
                exact = (equal == 1) & (tl.cumsum(equal) == needed - before)
                last = tl.max(tl.where(exact, v, -1))
            before += here
    return key, last


@triton.jit
def _last_allowed(logits, temperature, top_k, top_p, last_logit, last_id, V, row_stride,
                  TOP_K: tl.constexpr, TOP_P: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    row = logits + program.to(tl.int64) * row_stride
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(row + v, mask=v < V, other=float("-inf")))
    top = tl.max(highest)
    heat = tl.load(temperature + program)
    # A row at temperature 0 takes its first id whatever is allowed; 1 keeps its arithmetic finite.
    sharpness = LOG2_E / tl.where(heat > 0, heat, 1.0)
    key, last = tl.full([], LOWEST, tl.int32), V - 1  # everything is allowed
    low, high = tl.full([], LOWEST, tl.int64), _key(top).to(tl.int64) + 1
    if TOP_K:
        k = tl.load(top_k + program)
        if (k > 0) & (k < V):
            key, last = _narrowed(row, V, low, high, k.to(tl.float32), top, sharpness, key, last,
                                  False, BLOCK)  # fmt: skip
    if TOP_P:
        p = tl.load(top_p + program)
        if p < 1:
            weights = tl.zeros([BLOCK], tl.float32)
            for start in range(0, V, BLOCK):
                logit, _, _, allowed = _block(row, start, V, key, last, BLOCK)
                weights += tl.where(allowed, _weight(logit, top, sharpness, True), 0.0)
            # At least one id, whatever p is.
            target = tl.maximum(p * tl.sum(weights), 1e-30)
            key, last = _narrowed(row, V, key.to(tl.int64), high, target, top, sharpness, key, last,
                                  True, BLOCK)  # fmt: skip
    tl.store(last_logit + program, tl.where(key == LOWEST, float("-inf"), _logit(key)))
    tl.store(last_id + program, last.to(tl.int64))


def threshold(
    logits_BV: Tensor, temperature_B: Tensor, top_k_B: Tensor | None, top_p_B: Tensor | None
) -> Threshold:
    """As threshold.py's, without a sort."""
    batch, vocabulary = logits_BV.shape
    logit_B = torch.empty(batch, dtype=torch.float32, device=logits_BV.device)
    id_B = torch.empty(batch, dtype=torch.int64, device=logits_BV.device)
    block = min(BLOCK, power_of_two(vocabulary))
    _last_allowed[(batch,)](
        logits_BV, temperature_B, top_k_B, top_p_B, logit_B, id_B, vocabulary, logits_BV.stride(0),
        TOP_K=top_k_B is not None, TOP_P=top_p_B is not None, BLOCK=block,
        num_warps=max(1, min(WARPS, block // 256)),
    )  # fmt: skip
    return Threshold(logit_B, id_B)
