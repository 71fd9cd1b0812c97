"""decode_attention as one Triton kernel: split-KV attention, whose last program of a row combines the splits.

One program holds the G query heads that share a key/value head and walks a part of the row's keys, so each
key is read once. Every row is cut by its own length, on the device: the grid depends on upper bounds only,
and a captured CUDA graph stays right when lengths change. Programs without keys return at once.

    m = max_j s_j,  l = sum_j 2^(s_j - m),  o = sum_j 2^(s_j - m) v_j / l        scores s in units of log 2
    row: o = sum_i 2^(e_i - max e) o_i / sum_i 2^(e_i - max e)        of split i: o_i and e_i = m + log2 l

A row with one split in use is written directly. Otherwise each split leaves o_i and e_i (float32) and counts
itself; whoever counts last sees all of them, adds them up in the order of the splits, so that the result does
not depend on who that was, and sets the counter back to 0 for the next launch.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportReturnType=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.arrival import is_last
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.decode_attention.splits import cut
from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.launch import multiprocessors
from fastkernels.kernels.overlap import follow, overlap

WARPS = 4
COMBINED = 8192  # elements of partial results in one step of the combination: 64 registers a thread at most
STRIDES = (
    "key_stride_b", "key_stride_j", "value_stride_b", "value_stride_j", "position_stride", "angle_stride",
    "cache_slot_stride",
)  # fmt: skip
LOG2_E = tl.constexpr(1.4426950408889634)


def unsupported(kernel: str, q_BHK: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object) -> str | None:
    return limits.triton(q_BHK, k_cache, v_cache)


@triton.jit
def _split_bounds(first, end, split, splits, MIN_SPLIT: tl.constexpr, TILE: tl.constexpr):
    """Of keys [first, end): those of a split, begin .. (none if begin >= end), number of splits in use."""
    start = first // TILE * TILE
    # Whole tiles, at least MIN_SPLIT keys: a short row needs no combination, a long one uses all splits.
    size = tl.cdiv(tl.cdiv(end - start, splits), TILE) * TILE
    size = tl.maximum(size, MIN_SPLIT)
    begin = start + split * size
    return begin, tl.minimum(begin + size, end), tl.cdiv(end - start, size)


@triton.jit
def _combine(out, split_out, split_lse, used,
             G: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, DIMS: tl.constexpr,
             SLOTS: tl.constexpr):  # fmt: skip
    """out[G, K] from split_out[used, G, K] and split_lse[used, G], SLOTS splits at a time."""
    s, g, d = tl.arange(0, SLOTS), tl.arange(0, GROUP), tl.arange(0, DIMS)
    out_mask = (g < G)[:, None] & (d < K)[None, :]
    # Finite, so that heads that are only padding have weights 0 and not NaN.
    top = tl.full([GROUP], -1e30, tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, DIMS], tl.float32)
    for at in tl.range(0, used, SLOTS, num_stages=1):
        slot = (at + s)[:, None] * G + g[None, :]
        there = (at + s < used)[:, None] & (g < G)[None, :]
        lse = tl.load(split_lse + slot, mask=there, other=float("-inf"), cache_modifier=".cg")
        parts = tl.load(
            split_out + slot[:, :, None] * K + d[None, None, :],
            mask=there[:, :, None] & (d < K)[None, None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(lse, 0))
        weights = tl.exp2(lse - new_top[None, :])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink[:, None] + tl.sum(parts * weights[:, :, None], 0)
        top = new_top
    total = tl.where(total > 0, total, 1.0)  # padding
    o = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + g[:, None] * K + d[None, :], o, mask=out_mask)


@triton.jit
def _angles(positions, cos_sin, row, position_stride, angle_stride, d, R: tl.constexpr):
    """Cosine and sine of each element of a head at the row's position: 1 and 0 behind the first R."""
    half: tl.constexpr = R // 2
    at = cos_sin + tl.load(positions + row * position_stride).to(tl.int64) * angle_stride + d % half
    cos = tl.load(at, mask=d < R, other=1.0).to(tl.float32)
    sin = tl.load(at + half, mask=d < R, other=0.0).to(tl.float32)
    return cos, tl.where(d < half, -sin, sin)


@triton.jit
def _rotated(x, d, mask, cos, sin, R: tl.constexpr):
    """Elements d of the heads at `x`, rotated. Rounded to the dtype of x."""
    own = tl.load(x + d, mask=mask, other=0.0)
    other = tl.where(d < R // 2, d + R // 2, d - R // 2)
    partner = tl.load(x + other, mask=mask & (d < R), other=0.0)
    return (own.to(tl.float32) * cos + partner.to(tl.float32) * sin).to(own.dtype)


@triton.jit(do_not_specialize=["table_stride_b"])
def _attend(query, k_cache, v_cache, seq_lens, block_tables, out, split_out, split_lse, counters, scale,
            q_stride_b, q_stride_h, k_stride_n, k_stride_p, k_stride_j, v_stride_n, v_stride_p, v_stride_j,
            table_stride_b, key, value, positions, cos_sin, cache_slots, key_stride_b, key_stride_j,
            value_stride_b, value_stride_j, position_stride, angle_stride, cache_slot_stride,
            G: tl.constexpr, K: tl.constexpr, P: tl.constexpr, WINDOW: tl.constexpr, R: tl.constexpr,
            MIN_SPLIT: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
            DIMS: tl.constexpr, SLOTS: tl.constexpr, STAGES: tl.constexpr,
            OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    # Heads of one token are neighbours in memory: programs that run together read neighbouring lines. First
    # splits of all rows come first: programs that find no keys then hold up nobody.
    kv_head, row, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    seq_len = tl.load(seq_lens + row)
    first = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
    # A new key is in no cache yet: the first split has it, beside its cached ones.
    is_new: tl.constexpr = key is not None
    cached = seq_len - 1 if is_new else seq_len
    begin, end, used = _split_bounds(first, cached, split, tl.num_programs(2), MIN_SPLIT, TILE)
    if is_new:  # a window may hold the new key alone; of a tile without a key in it softmax is NaN
        end, used = tl.where(cached > first, end, begin), tl.maximum(used, 1)
    g, d, j = tl.arange(0, HEADS), tl.arange(0, DIMS), tl.arange(0, TILE)
    head = kv_head * G + g
    out_mask = (g < G)[:, None] & (d < K)[None, :]
    group = row * tl.num_programs(0) + kv_head
    out += group * G * K
    here = g[:, None] * K + d[None, :]
    has_new = is_new and (split == 0) & (seq_len > 0)
    if begin >= end and not has_new:
        if split == 0:
            tl.store(out + here, tl.zeros([HEADS, DIMS], out.dtype.element_ty), mask=out_mask)
        return

    query += row * q_stride_b
    if is_new:
        cos, sin = _angles(positions, cos_sin, row, position_stride, angle_stride, d, R)
        q = _rotated(query + head[:, None] * q_stride_h, d[None, :], out_mask, cos[None, :], sin[None, :], R)
        # Loaded ahead of the walk over the cache and used behind it: nothing waits for them.
        new_mask = (d < K) & has_new
        new_k = _rotated(key + row * key_stride_b + kv_head * key_stride_j, d, new_mask, cos, sin, R)
        new_v = tl.load(value + row * value_stride_b + kv_head * value_stride_j + d, mask=new_mask, other=0.0)
        slot = tl.load(cache_slots + row * cache_slot_stride).to(tl.int64)
    else:
        q = tl.load(query + head[:, None] * q_stride_h + d[None, :], mask=out_mask, other=0.0)
    to_log2 = scale * LOG2_E
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, DIMS], tl.float32)
    table = block_tables + row * table_stride_b
    for at in tl.range(begin, end, TILE, num_stages=STAGES):
        position = at + j
        seen = (position >= first) & (position < end)
        block = tl.load(table + position // P, mask=seen, other=0).to(tl.int64)
        offset = position % P
        mask = seen[:, None] & (d < K)[None, :]
        k_rows = k_cache + (block * k_stride_n + offset * k_stride_p + kv_head * k_stride_j)
        k = tl.load(k_rows[:, None] + d[None, :], mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * to_log2
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        v_rows = v_cache + (block * v_stride_n + offset * v_stride_p + kv_head * v_stride_j)
        v = tl.load(v_rows[:, None] + d[None, :], mask=mask, other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top

    if is_new:
        k_at = k_cache + (slot // P * k_stride_n + slot % P * k_stride_p + kv_head * k_stride_j)
        v_at = v_cache + (slot // P * v_stride_n + slot % P * v_stride_p + kv_head * v_stride_j)
        tl.store(k_at + d, new_k, mask=new_mask)
        tl.store(v_at + d, new_v, mask=new_mask)
        score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * to_log2
        score = tl.where(has_new, score, float("-inf"))
        new_top = tl.maximum(top, score)
        weight, shrink = tl.exp2(score - new_top), tl.exp2(top - new_top)
        total = total * shrink + weight
        acc = acc * shrink[:, None] + weight[:, None] * new_v.to(tl.float32)[None, :]
        top = new_top
    acc = acc / total[:, None]
    if split_out is None or used == 1:
        tl.store(out + here, acc.to(out.dtype.element_ty), mask=out_mask)
    else:
        slots = group * tl.num_programs(2)
        split_out += slots * G * K
        split_lse += slots * G
        tl.store(split_out + split * G * K + here, acc, mask=out_mask)
        tl.store(split_lse + split * G + g, top + tl.log2(total), mask=g < G)
        if is_last(counters + group, used):
            _combine(out, split_out, split_lse, used, G, K, GROUP, DIMS, SLOTS)


class New(NamedTuple):
    """The rows' own keys and values, neither rotated nor in the cache yet, and their table and places."""

    key_BJK: Tensor
    value_BJK: Tensor
    positions_B: Tensor
    cos_sin_MR: Tensor
    slots_B: Tensor


def decode_attention(
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
) -> Tensor:
    return launch(q_BHK, k_cache, v_cache, seq_lens_B, block_tables_BN, scale, window, max_seq_len, None)


def launch(
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
    new: New | None,
) -> Tensor:
    """decode_attention; with `new`, of queries that are to be rotated over keys of which the last is new."""
    batch, num_heads, head_dim = q_BHK.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.empty((batch, num_heads, head_dim), dtype=q_BHK.dtype, device=q_BHK.device)
    if batch == 0:
        return out
    group, dims = num_heads // num_kv_heads, max(16, triton.next_power_of_2(head_dim))
    key_bytes, processors = dims * k_cache.element_size(), multiprocessors(q_BHK.device)
    tile, splits, smallest, stages = cut(batch, num_kv_heads, max_seq_len, key_bytes, window, processors)
    split_out = split_lse = counters = None
    if splits > 1:
        parts = (batch, num_kv_heads, splits, group)
        split_out = torch.empty((*parts, head_dim), dtype=torch.float32, device=out.device)
        split_lse = torch.empty(parts, dtype=torch.float32, device=out.device)
        counters = zeroed(batch * num_kv_heads, out.device)
    heads = triton.next_power_of_2(group)
    slots = min(triton.next_power_of_2(splits), max(1, COMBINED // (heads * dims)))
    _attend[(num_kv_heads, batch, splits)](
        q_BHK, k_cache, v_cache, seq_lens_B, block_tables_BN, out, split_out, split_lse, counters, scale,
        *q_BHK.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], block_tables_BN.stride(0),
        **_of_new(new), G=group, K=head_dim, P=block_size, WINDOW=window, MIN_SPLIT=smallest, TILE=tile,
        HEADS=max(16, heads), GROUP=heads, DIMS=dims, SLOTS=slots, STAGES=stages,
        num_warps=WARPS, **overlap(out.device),
    )  # fmt: skip
    return out


def _of_new(new: New | None) -> dict[str, Any]:
    if new is None:
        tensors = dict.fromkeys(("key", "value", "positions", "cos_sin", "cache_slots"))
        return {**tensors, **dict.fromkeys(STRIDES, 0), "R": 0}
    key, value = new.key_BJK.stride()[:2], new.value_BJK.stride()[:2]
    rows = (x.stride(0) for x in (new.positions_B, new.cos_sin_MR, new.slots_B))
    return {
        "key": new.key_BJK, "value": new.value_BJK, "positions": new.positions_B, "cos_sin": new.cos_sin_MR,
        "cache_slots": new.slots_B, **dict(zip(STRIDES, (*key, *value, *rows), strict=True)),
        "R": new.cos_sin_MR.shape[-1],
    }  # fmt: skip
