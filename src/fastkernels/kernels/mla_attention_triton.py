"""mla_decode, mla_prefill and store_latent in Triton: a program reads each entry once, for the scores and the
values of all its heads.

Decoding is split along the keys as kernels/decode_attention/triton.py splits it, by each row's own length.
A program of a prefill has some tokens of some heads. H heads · G of a program · L latent features · R others
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportReturnType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.arrival import is_last
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.decode_attention.triton import LOG2_E, _split_bounds, split_shape
from fastkernels.kernels.launch import multiprocessors, power_of_two
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.ragged import row_of_tile
from fastkernels.kernels.splits import combine

HEADS = 16  # of a program: a side of a product, the least that tensor cores take
TOKENS = {2: 4, 4: 1}  # of a program of a prefill, by bytes of an element
TILE = {2: 32, 4: 16}  # keys in one step of the loop
COMBINED = 8192  # elements of partial results in one step of the combination
WIDEST = 512


def unsupported(kernel: str, x: Tensor, *rest: object) -> str | None:
    tensors = [t for t in rest if isinstance(t, Tensor) and t.is_floating_point()]
    if reason := checks.not_float32_compute(x, *tensors):
        return reason
    if any(t.stride(-1) != 1 for t in (x, *tensors)):
        return "needs a contiguous last dimension"
    if kernel == "store_latent":
        return None
    cache = tensors[0]
    if (block_size := cache.shape[1]) & (block_size - 1):
        return f"needs a block size that is a power of two, not {block_size}"
    latent = rest[4] if kernel == "mla_decode" else rest[5]
    if not isinstance(latent, int) or latent > WIDEST:
        return f"serves up to {WIDEST} latent features, not {latent}"
    return None


@triton.jit
def _visit(cache, table, position, seen, q_latent, q_rest, to_log2, limit, top, total, acc,
           cache_stride_n, cache_stride_p, L: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
           LATENTS: tl.constexpr, RESTS: tl.constexpr):  # fmt: skip
    """One tile of keys: running maximum, sum and output of online softmax. `limit`: the first key that a
    query does not see."""
    c, r = tl.arange(0, LATENTS), tl.arange(0, RESTS)
    block = tl.load(table + position // P, mask=seen, other=0).to(tl.int64)
    entries = cache + (block * cache_stride_n + (position % P) * cache_stride_p)[:, None]
    latent = tl.load(entries + c[None, :], mask=seen[:, None] & (c < L)[None, :], other=0.0)
    rest = tl.load(entries + L + r[None, :], mask=seen[:, None] & (r < R)[None, :], other=0.0)
    scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
    scores = tl.dot(q_rest, tl.trans(rest), scores, input_precision="ieee") * to_log2
    scores = tl.where(seen[None, :] & (position[None, :] < limit[:, None]), scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    acc = tl.dot(weights.to(latent.dtype), latent, acc * shrink[:, None], input_precision="ieee")
    return new_top, total * shrink + tl.sum(weights, 1), acc


@triton.jit(do_not_specialize=["table_stride_b"])
def _decode(query, cache, seq_lens, block_tables, out, split_out, split_lse, counters, scale,
            q_stride_b, q_stride_h, cache_stride_n, cache_stride_p, table_stride_b,
            G: tl.constexpr, L: tl.constexpr, R: tl.constexpr, P: tl.constexpr, MIN_SPLIT: tl.constexpr,
            TILE: tl.constexpr, HEADS: tl.constexpr, LATENTS: tl.constexpr, RESTS: tl.constexpr,
            SLOTS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    part, row, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    seq_len = tl.load(seq_lens + row)
    _, begin, end, used = _split_bounds(seq_len, split, tl.num_programs(2), MIN_SPLIT, 0, TILE)
    g, c, r, j = tl.arange(0, HEADS), tl.arange(0, LATENTS), tl.arange(0, RESTS), tl.arange(0, TILE)
    out_mask = (g < G)[:, None] & (c < L)[None, :]
    group = row * tl.num_programs(0) + part
    out += group * G * L
    here = g[:, None] * L + c[None, :]
    if begin >= end:
        if split == 0:
            tl.store(out + here, tl.zeros([HEADS, LATENTS], out.dtype.element_ty), mask=out_mask)
        return

    q_at = query + row * q_stride_b + (part * G + g)[:, None] * q_stride_h
    q_latent = tl.load(q_at + c[None, :], mask=out_mask, other=0.0)
    q_rest = tl.load(q_at + L + r[None, :], mask=(g < G)[:, None] & (r < R)[None, :], other=0.0)
    to_log2 = scale * LOG2_E
    limit = tl.zeros([HEADS], tl.int32) + end
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, LATENTS], tl.float32)
    for key in range(begin, end, TILE):
        position = key + j
        top, total, acc = _visit(
            cache, block_tables + row * table_stride_b, position, position < end, q_latent, q_rest, to_log2,
            limit, top, total, acc, cache_stride_n, cache_stride_p, L, R, P, LATENTS, RESTS,
        )  # fmt: skip

    acc = acc / total[:, None]
    if split_out is None or used == 1:
        tl.store(out + here, acc.to(out.dtype.element_ty), mask=out_mask)
    else:
        slots = group * tl.num_programs(2)
        split_out += slots * G * L
        split_lse += slots * G
        tl.store(split_out + split * G * L + here, acc, mask=out_mask)
        tl.store(split_lse + split * G + g, top + tl.log2(total), mask=g < G)
        if is_last(counters + group, used):
            combine(out, split_out, split_lse, used, G, L, HEADS, LATENTS, SLOTS)


@triton.jit(do_not_specialize=["table_stride_b", "num_rows"])
def _prefill(query, cache, starts, seq_lens, block_tables, out, scale, num_rows,
             q_stride_t, q_stride_h, cache_stride_n, cache_stride_p, table_stride_b,
             H: tl.constexpr, G: tl.constexpr, L: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
             TOKENS: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr, LATENTS: tl.constexpr,
             RESTS: tl.constexpr):  # fmt: skip
    """TOKENS queries of one row, each with G heads: rows of one product."""
    tile, part = tl.program_id(0), tl.program_id(1)
    row = row_of_tile(starts, num_rows, tile, TOKENS)
    origin = tl.load(starts)
    row_start = tl.load(starts + row) - origin
    query_len = tl.load(starts + row + 1) - origin - row_start
    first = (tile - row_start // TOKENS - row) * TOKENS
    if first >= query_len:
        return
    seq_len = tl.load(seq_lens + row)
    m, c, r, j = tl.arange(0, TOKENS * HEADS), tl.arange(0, LATENTS), tl.arange(0, RESTS), tl.arange(0, TILE)
    token, g = first + m // HEADS, m % HEADS
    real = (token < query_len) & (g < G)
    place = (row_start + token).to(tl.int64)
    q_at = query + (place * q_stride_t + (part * G + g) * q_stride_h)[:, None]
    q_latent = tl.load(q_at + c[None, :], mask=real[:, None] & (c < L)[None, :], other=0.0)
    q_rest = tl.load(q_at + L + r[None, :], mask=real[:, None] & (r < R)[None, :], other=0.0)
    limit = seq_len - query_len + token + 1
    end = tl.minimum(seq_len, seq_len - query_len + first + TOKENS)
    to_log2 = scale * LOG2_E
    top = tl.full([TOKENS * HEADS], float("-inf"), tl.float32)
    total = tl.zeros([TOKENS * HEADS], tl.float32)
    acc = tl.zeros([TOKENS * HEADS, LATENTS], tl.float32)
    for key in range(0, end, TILE):
        position = key + j
        top, total, acc = _visit(
            cache, block_tables + row.to(tl.int64) * table_stride_b, position, position < end, q_latent,
            q_rest, to_log2, limit, top, total, acc, cache_stride_n, cache_stride_p, L, R, P, LATENTS, RESTS,
        )  # fmt: skip
    o_at = out + ((place * H + part * G + g) * L)[:, None] + c[None, :]
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(o_at, result, mask=real[:, None] & (c < L)[None, :])


@triton.jit
def _store(latent, rest, cache, slots, c_stride, r_stride, cache_stride_n, cache_stride_p,
           L: tl.constexpr, R: tl.constexpr, P: tl.constexpr, LATENTS: tl.constexpr, RESTS: tl.constexpr,
           OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    t, c, r = tl.program_id(0).to(tl.int64), tl.arange(0, LATENTS), tl.arange(0, RESTS)
    slot = tl.load(slots + t)
    at = cache + (slot // P) * cache_stride_n + (slot % P) * cache_stride_p
    tl.store(at + c, tl.load(latent + t * c_stride + c, mask=c < L), mask=c < L)
    tl.store(at + L + r, tl.load(rest + t * r_stride + r, mask=r < R), mask=r < R)


def mla_decode(
    q_BHC: Tensor,
    cache_NPC: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_seq_len: int,
) -> Tensor:
    batch, num_heads, _ = q_BHC.shape
    out = q_BHC.new_empty((batch, num_heads, latent))
    if batch == 0:
        return out
    sizes, group = _sizes(q_BHC, cache_NPC, latent)
    parts, tile = num_heads // group, TILE[q_BHC.element_size()]
    splits, min_split = split_shape(batch, parts, max_seq_len, tile, multiprocessors(q_BHC.device))
    split_out = split_lse = counters = None
    if splits > 1:
        shape = (batch, parts, splits, group)
        split_out = torch.empty((*shape, latent), dtype=torch.float32, device=out.device)
        split_lse = torch.empty(shape, dtype=torch.float32, device=out.device)
        counters = zeroed(batch * parts, out.device)
    slots = min(power_of_two(splits), max(1, COMBINED // (sizes["HEADS"] * sizes["LATENTS"])))
    _decode[(parts, batch, splits)](
        q_BHC, cache_NPC, seq_lens_B, block_tables_BM, out, split_out, split_lse, counters, scale,
        *q_BHC.stride()[:2], *cache_NPC.stride()[:2], block_tables_BM.stride(0), **sizes,
        MIN_SPLIT=min_split, TILE=tile, SLOTS=slots, num_warps=4, num_stages=2, **overlap(out.device),
    )  # fmt: skip
    return out


def mla_prefill(
    q_THC: Tensor,
    cache_NPC: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_query_len: int,
    max_seq_len: int,
) -> Tensor:
    (tokens, num_heads, _), num_rows = q_THC.shape, seq_lens_B.shape[0]
    out = q_THC.new_empty((tokens, num_heads, latent))
    if tokens == 0:
        return out
    (sizes, group), size = _sizes(q_THC, cache_NPC, latent), q_THC.element_size()
    _prefill[(tokens // TOKENS[size] + num_rows, num_heads // group)](
        q_THC, cache_NPC, query_starts_B1, seq_lens_B, block_tables_BM, out, scale, num_rows,
        *q_THC.stride()[:2], *cache_NPC.stride()[:2], block_tables_BM.stride(0), **sizes, H=num_heads,
        TOKENS=TOKENS[size], TILE=TILE[size], num_warps=8, num_stages=2,
    )  # fmt: skip
    return out


def store_latent(c_TL: Tensor, r_TR: Tensor, cache_NPC: Tensor, slots_T: Tensor) -> None:
    if c_TL.shape[0] == 0:
        return
    latent, rest = c_TL.shape[1], r_TR.shape[1]
    _store[(c_TL.shape[0],)](
        c_TL, r_TR, cache_NPC, slots_T, c_TL.stride(0), r_TR.stride(0), *cache_NPC.stride()[:2],
        L=latent, R=rest, P=cache_NPC.shape[1], LATENTS=power_of_two(latent), RESTS=power_of_two(rest),
        num_warps=1, **overlap(c_TL.device),
    )  # fmt: skip


def _sizes(q_THC: Tensor, cache_NPC: Tensor, latent: int) -> tuple[dict[str, int], int]:
    """Constants of a launch, and heads of a program."""
    num_heads, rest = q_THC.shape[1], q_THC.shape[2] - latent
    group = HEADS if num_heads % HEADS == 0 else num_heads
    sizes = {"G": group, "L": latent, "R": rest, "P": cache_NPC.shape[1]}
    padded = {name: max(16, power_of_two(n)) for name, n in (("LATENTS", latent), ("RESTS", rest))}
    return {**sizes, **padded, "HEADS": max(16, power_of_two(group))}, group
