"""chunk_delta_rule and recurrent_delta_rule in Triton; states stay in registers from a row's first token to
its last.

chunks.py has the mathematics of chunks and their kernels; here is what they get, and the step of one token.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.delta_rule.chunks import _across, _within, log_decay, over_length
from fastkernels.kernels.delta_rule.reference import EPS
from fastkernels.kernels.launch import power_of_two
from fastkernels.kernels.overlap import follow, overlap

WIDEST_KEY = 256
LEAST = 16  # a side of a product, the least that tensor cores take
STEP_COLUMNS, STEP_ELEMENTS_OF_A_WARP = 32, 2048


class Tile(NamedTuple):
    """How chunks are cut, by the kernel within them and the one across them."""

    chunk: int  # tokens, a power of two of at least 16
    slice: int  # channels at a time
    within_warps: int
    columns: int  # value columns of a program, which holds that part of a head's state in registers
    across_warps: int
    stages: int  # chunks on their way at a time


# By bytes of an element, and whether gates are by channel. 16-bit, compiled for sm_90 at K and V 128, nothing
# spilled: within chunks 242 registers a thread and 48 KiB of shared memory (by channel 250 and 10); across
# them 248 registers and 67 KiB. Chunks of 64 tokens by channel spill. 32-bit: no tensor cores, which would
# round the operands.
TILES = {
    (2, False): Tile(64, 32, 8, 32, 4, 2),
    (2, True): Tile(32, 16, 4, 32, 4, 2),
    (4, False): Tile(16, 32, 4, 16, 4, 1),
    (4, True): Tile(16, 16, 4, 16, 4, 1),
}
# Of A, P and M, whose operands lose digits that the sums do not win back: bfloat16 keeps 8 bits, tf32 11, and
# three products of tf32 more than float16.
PRECISION = {torch.bfloat16: "tf32", torch.float16: "tf32x3", torch.float32: "ieee"}


def unsupported(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, a_log: Tensor, bias: Tensor,
    scale: float, state: Tensor, *_: object,
) -> str | None:  # fmt: skip
    if reason := checks.not_float32_compute(q, k, v, g, b, bias):
        return reason
    if state.dtype != torch.float32 or a_log.dtype != torch.float32:
        return f"keeps states and A_log in float32, not {state.dtype} and {a_log.dtype}"
    if any(x.stride(-1) != 1 for x in (q, k, v, g, b)):
        return "needs a contiguous last dimension"
    if not all(x.is_contiguous() for x in (state, a_log, bias)):
        return "needs contiguous states, A_log and dt_bias"
    if q.shape[-1] > WIDEST_KEY:
        return f"serves key dimensions up to {WIDEST_KEY}, not {q.shape[-1]}"
    return None


@triton.jit
def _step(query, key, value, gate, beta, a_log, bias, state, rows, out, scale,
          q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, g_stride_t, g_stride_h,
          b_stride_t,
          H: tl.constexpr, SHARED: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CHANNELS: tl.constexpr,
          EPS: tl.constexpr, DIMS: tl.constexpr, COLUMNS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    """One token of one row, for one head of values and some columns of the value."""
    follow(OVERLAPS)
    head, r = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c, d = tl.arange(0, DIMS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_key, in_value = c < K, d < V
    s_at = state + ((tl.load(rows + r).to(tl.int64) * H + head) * K + c)[:, None] * V + d[None, :]
    in_state = in_key[:, None] & in_value[None, :]
    s = tl.load(s_at, mask=in_state, other=0.0)
    q_at = query + r * q_stride_t + (head // SHARED) * q_stride_h
    k_at = key + r * k_stride_t + (head // SHARED) * k_stride_h
    q = tl.load(q_at + c, mask=in_key, other=0.0).to(tl.float32)
    k = tl.load(k_at + c, mask=in_key, other=0.0).to(tl.float32)
    v = tl.load(value + r * v_stride_t + head * v_stride_h + d, mask=in_value, other=0.0).to(tl.float32)
    b = tl.sigmoid(tl.load(beta + r * b_stride_t + head).to(tl.float32))
    rate = tl.exp(tl.load(a_log + head))
    g_at = gate + r * g_stride_t + head * g_stride_h
    if CHANNELS == 1:
        s *= tl.exp(log_decay(tl.load(g_at).to(tl.float32), tl.load(bias + head).to(tl.float32), rate))
    else:
        raw = tl.load(g_at + c, mask=in_key, other=0.0).to(tl.float32)
        offset = tl.load(bias + head * K + c, mask=in_key, other=0.0).to(tl.float32)
        s *= tl.exp(log_decay(raw, offset, rate))[:, None]
    k *= over_length(tl.sum(k * k, axis=0), EPS)
    q *= over_length(tl.sum(q * q, axis=0), EPS) * scale
    new = b * (v - tl.sum(s * k[:, None], axis=0))
    s += k[:, None] * new[None, :]
    tl.store(s_at, s, mask=in_state)
    o = tl.sum(s * q[:, None], axis=0)
    tl.store(out + (r * H + head) * V + d, o.to(out.dtype.element_ty), mask=in_value)


def chunk_delta_rule(
    q_TJK: Tensor,
    k_TJK: Tensor,
    v_THV: Tensor,
    g_THG: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    (num_tokens, num_heads, value_dim), num_rows = v_THV.shape, rows_B.shape[0]
    o_THV = q_TJK.new_empty(v_THV.shape)
    if num_tokens == 0:
        return o_THV
    sizes, tile = _sizes(q_TJK, v_THV, g_THG), TILES[q_TJK.element_size(), g_THG.ndim == 3]
    dims, values, chunk = sizes["DIMS"], max(LEAST, power_of_two(value_dim)), tile.chunk
    columns = min(tile.columns, values)
    # Chunks have whole tiles to themselves, so that no load of what is known of one has a mask.
    blocks = (num_tokens // chunk + num_rows) * num_heads
    read, kept, erase = (q_TJK.new_empty((blocks, chunk, dims)) for _ in range(3))
    fresh, weights = (q_TJK.new_empty((blocks, chunk, width)) for width in (values, chunk))
    decay = torch.empty((blocks, dims), dtype=torch.float32, device=q_TJK.device)
    precision, levels = PRECISION[q_TJK.dtype], chunk.bit_length() - 1
    _within[(blocks // num_heads, num_heads)](
        q_TJK, k_TJK, v_THV, g_THG, b_TH, A_log_H, dt_bias_HG, query_starts_B1,
        read, kept, erase, fresh, decay, weights, scale, num_rows,
        *_strides(q_TJK, k_TJK, v_THV, g_THG, b_TH), **sizes, C=chunk, LEVELS=levels, VALUES=values,
        SLICE=min(tile.slice, dims, values), PRECISION=precision, num_warps=tile.within_warps,
    )  # fmt: skip
    _across[(triton.cdiv(value_dim, columns), num_heads, num_rows)](
        read, kept, erase, fresh, decay, weights, state_RHKV, rows_B, query_starts_B1, o_THV,
        H=num_heads, K=sizes["K"], V=value_dim, C=chunk, DIMS=dims, VALUES=values, COLUMNS=columns,
        STAGES=tile.stages, PRECISION=precision, num_warps=tile.across_warps,
    )  # fmt: skip
    return o_THV


def recurrent_delta_rule(
    q_BJK: Tensor,
    k_BJK: Tensor,
    v_BHV: Tensor,
    g_BHG: Tensor,
    b_BH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
    state_RHKV: Tensor,
    rows_B: Tensor,
) -> Tensor:
    num_rows, num_heads, value_dim = v_BHV.shape
    o_BHV = q_BJK.new_empty(v_BHV.shape)
    if num_rows == 0:
        return o_BHV
    sizes, columns = _sizes(q_BJK, v_BHV, g_BHG), min(STEP_COLUMNS, power_of_two(value_dim))
    elements = sizes["DIMS"] * columns
    _step[(triton.cdiv(value_dim, columns), num_heads, num_rows)](
        q_BJK, k_BJK, v_BHV, g_BHG, b_BH, A_log_H, dt_bias_HG, state_RHKV, rows_B, o_BHV, scale,
        *_strides(q_BJK, k_BJK, v_BHV, g_BHG, b_BH), **sizes, COLUMNS=columns,
        num_warps=max(1, min(8, elements // STEP_ELEMENTS_OF_A_WARP)), **overlap(q_BJK.device),
    )  # fmt: skip
    return o_BHV


def _sizes(q_TJK: Tensor, v_THV: Tensor, g_THG: Tensor) -> dict[str, int | float]:
    """Constants of a launch."""
    (_, keys, key_dim), (_, heads, value_dim) = q_TJK.shape, v_THV.shape
    shape = {"H": heads, "SHARED": heads // keys, "K": key_dim, "V": value_dim}
    return {
        **shape, "CHANNELS": key_dim if g_THG.ndim == 3 else 1, "EPS": EPS,
        "DIMS": max(LEAST, power_of_two(key_dim)),
    }  # fmt: skip


def _strides(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor) -> tuple[int, ...]:
    return (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *g.stride()[:2], b.stride(0))
