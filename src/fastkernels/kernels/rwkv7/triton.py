"""chunk_rwkv7 and recurrent_rwkv7 in Triton; chunks.py has the mathematics of chunks and their kernels, here
is what they get, and the step of one token.
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
from fastkernels.kernels.launch import power_of_two
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.rwkv7.chunks import _across, _within

WIDEST = 64  # of a head: the state of a chunk's step is a matrix of it
STEP_COLUMNS, STEP_WARPS = 16, 2


class Tile(NamedTuple):
    """How chunks are cut, by the kernel within them and the one across them."""

    chunk: int  # tokens, a power of two of at least 16, the least that tensor cores take
    within_warps: int
    columns: int  # value columns of a program, which holds that part of a head's state in registers
    across_warps: int
    stages: int  # chunks on their way at a time


# By bytes of an element. 16-bit, compiled for sm_90: within chunks 255 registers, 480 bytes spilled, 88 KiB
# of shared memory (two programs on a multiprocessor); across them 60 registers. No sweep has chosen them.
# 32-bit: no tensor cores, which would round the operands.
TILES = {2: Tile(64, 4, 16, 4, 2), 4: Tile(16, 4, 16, 4, 1)}
# bfloat16 keeps 8 bits, tf32 11, and three products of tf32 more than float16.
PRECISION = {torch.bfloat16: "tf32", torch.float16: "tf32x3", torch.float32: "ieee"}


def unsupported(kernel: str, r: Tensor, *rest: Tensor) -> str | None:
    tokens, state = (r, *rest[:5]), rest[5]
    if reason := checks.not_float32_compute(*tokens):
        return reason
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if any(x.stride(-1) != 1 for x in tokens) or not state.is_contiguous():
        return "needs a contiguous last dimension, and contiguous states"
    if max(state.shape[-2:]) > WIDEST:
        return f"serves heads of up to {WIDEST}, not {list(state.shape[-2:])}"
    return None


@triton.jit
def advanced(s, r, w, k, v, kk, a):
    """A state [K, V] after one token, and what r reads of it."""
    removed = tl.sum(s * kk[:, None], axis=0)
    s = s * tl.exp(w)[:, None] - (kk * a)[:, None] * removed[None, :] + k[:, None] * v[None, :]
    return s, tl.sum(s * r[:, None], axis=0)


@triton.jit
def _step(receptance, log_decay, key, value, removal, rate, state, rows, out,
          r_stride_t, r_stride_h, w_stride_t, w_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h,
          kk_stride_t, kk_stride_h, a_stride_t, a_stride_h,
          H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, DIMS: tl.constexpr,
          COLUMNS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    """One token of one row, for one head and some columns of the value."""
    follow(OVERLAPS)
    head, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c, d = tl.arange(0, DIMS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_key, in_value = c < K, d < V
    s_at = state + ((tl.load(rows + b).to(tl.int64) * H + head) * K + c)[:, None] * V + d[None, :]
    in_state = in_key[:, None] & in_value[None, :]
    s = tl.load(s_at, mask=in_state, other=0.0)
    r = tl.load(receptance + b * r_stride_t + head * r_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    w = tl.load(log_decay + b * w_stride_t + head * w_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    k = tl.load(key + b * k_stride_t + head * k_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    v = tl.load(value + b * v_stride_t + head * v_stride_h + d, mask=in_value, other=0.0).to(tl.float32)
    kk = tl.load(removal + b * kk_stride_t + head * kk_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    a = tl.load(rate + b * a_stride_t + head * a_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    s, o = advanced(s, r, w, k, v, kk, a)
    tl.store(s_at, s, mask=in_state)
    tl.store(out + (b * H + head) * V + d, o.to(out.dtype.element_ty), mask=in_value)


def chunk_rwkv7(
    r_THK: Tensor,
    w_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    kk_THK: Tensor,
    a_THK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    num_tokens, num_heads, key_dim = r_THK.shape
    value_dim, num_rows = v_THV.shape[-1], rows_B.shape[0]
    o_THV = r_THK.new_empty(v_THV.shape)
    if num_tokens == 0:
        return o_THV
    tile, precision = TILES[r_THK.element_size()], PRECISION[r_THK.dtype]
    dims, width = (max(16, power_of_two(size)) for size in (key_dim, value_dim))
    # Chunks have whole tiles to themselves, so that no load of what is known of one has a mask.
    blocks, chunk = (num_tokens // tile.chunk + num_rows) * num_heads, tile.chunk
    read, out, move = (
        r_THK.new_empty(blocks, *shape) for shape in ((chunk, dims), (chunk, width), (dims, dims))
    )
    add, last = (r_THK.new_empty(blocks, *shape, dtype=torch.float32) for shape in ((dims, width), (dims,)))
    tokens = (r_THK, w_THK, k_THK, v_THV, kk_THK, a_THK)
    _within[(blocks // num_heads, num_heads)](
        *tokens, query_starts_B1, read, out, move, add, last, num_rows, *_strides(tokens),
        H=num_heads, K=key_dim, V=value_dim, C=chunk, LEVELS=chunk.bit_length() - 1, DIMS=dims, WIDTH=width,
        PRECISION=precision, num_warps=tile.within_warps,
    )  # fmt: skip
    columns = min(tile.columns, width)
    _across[(triton.cdiv(value_dim, columns), num_heads, num_rows)](
        read, out, move, add, last, state_RHKV, rows_B, query_starts_B1, o_THV,
        H=num_heads, K=key_dim, V=value_dim, C=chunk, DIMS=dims, WIDTH=width, COLUMNS=columns,
        STAGES=tile.stages, PRECISION=precision, num_warps=tile.across_warps,
    )  # fmt: skip
    return o_THV


def recurrent_rwkv7(
    r_BHK: Tensor,
    w_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    kk_BHK: Tensor,
    a_BHK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
) -> Tensor:
    num_rows, num_heads, key_dim = r_BHK.shape
    value_dim = v_BHV.shape[-1]
    o_BHV = r_BHK.new_empty(v_BHV.shape)
    if num_rows == 0:
        return o_BHV
    tokens = (r_BHK, w_BHK, k_BHK, v_BHV, kk_BHK, a_BHK)
    columns = min(STEP_COLUMNS, power_of_two(value_dim))
    _step[(triton.cdiv(value_dim, columns), num_heads, num_rows)](
        *tokens, state_RHKV, rows_B, o_BHV, *_strides(tokens), H=num_heads, K=key_dim, V=value_dim,
        DIMS=power_of_two(key_dim), COLUMNS=columns, num_warps=STEP_WARPS, **overlap(r_BHK.device),
    )  # fmt: skip
    return o_BHV


def _strides(tokens: tuple[Tensor, ...]) -> list[int]:
    return [stride for x in tokens for stride in x.stride()[:2]]
