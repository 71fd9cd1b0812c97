"""chunk_gla and recurrent_gla in Triton; states stay in registers from a row's first token to its last.

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
from fastkernels.kernels.gla.chunks import _across, _within, lost
from fastkernels.kernels.launch import power_of_two
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.policy import interpreting

WIDEST_KEY = 256
STEP_COLUMNS, STEP_ELEMENTS_OF_A_WARP = 32, 2048


class Tile(NamedTuple):
    """How chunks are cut, by the kernel within them and the one across them."""

    chunk: int  # tokens, a power of two of at least 16, the least that tensor cores take
    slice: int  # channels of the key at a time
    within_warps: int
    within_stages: int  # slices on their way at a time
    within_registers: int | None  # of a thread at most
    columns: int  # value columns of a program, which holds that part of a head's state in registers
    elements_of_a_warp: int  # of that state
    stages: int  # chunks on their way at a time


# By bytes of an element. 16-bit, compiled for sm_90 at K 256: within chunks 168 registers a thread (six
# programs on a multiprocessor) and 24 KiB of shared memory; across them 255 registers (two programs), none
# spilled in the loop, and 79 KiB. Chunks of 64 tokens spill, and double what is in flight. 32-bit: no tensor
# cores, which would round the operands.
TILES = {2: Tile(32, 32, 2, 2, 168, 64, 4096, 2), 4: Tile(16, 32, 4, 1, None, 32, 1024, 1)}
# Of P, whose operands lose digits that the sum over K does not win back: bfloat16 keeps 8 bits, tf32 11, and
# three products of tf32 more than float16.
PRECISION = {torch.bfloat16: "tf32", torch.float16: "tf32x3", torch.float32: "ieee"}


def unsupported(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, state: Tensor, *_: object
) -> str | None:
    tokens = checks.given(q, k, v, gate)
    if reason := checks.not_float32_compute(*tokens):
        return reason
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if any(x.stride(-1) != 1 for x in tokens) or not state.is_contiguous():
        return "needs a contiguous last dimension, and contiguous states"
    if q.shape[-1] > WIDEST_KEY:
        return f"serves key dimensions up to {WIDEST_KEY}, not {q.shape[-1]}"
    return None


@triton.jit
def _step(query, key, value, gate, state, rows, out, scale,
          q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, g_stride_t, g_stride_h,
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
    q = tl.load(query + b * q_stride_t + head * q_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    k = tl.load(key + b * k_stride_t + head * k_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    v = tl.load(value + b * v_stride_t + head * v_stride_h + d, mask=in_value, other=0.0).to(tl.float32)
    if gate is None:
        s *= 1.0 - lost(head)
    else:
        g = tl.load(gate + b * g_stride_t + head * g_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
        s *= tl.exp(g)[:, None]
    s += k[:, None] * v[None, :]
    tl.store(s_at, s, mask=in_state)
    o = tl.sum(s * (q * scale)[:, None], axis=0)
    tl.store(out + (b * H + head) * V + d, o.to(out.dtype.element_ty), mask=in_value)


def chunk_gla(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    gate_THK: Tensor | None,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    num_tokens, num_heads, key_dim = q_THK.shape
    value_dim, num_rows = v_THV.shape[-1], rows_B.shape[0]
    o_THV = q_THK.new_empty(v_THV.shape)
    if num_tokens == 0:
        return o_THV
    tile = TILES[q_THK.element_size()]
    dims, columns = _tile(key_dim, value_dim, tile.columns)
    # Chunks have whole tiles to themselves, so that no load of what is known of one has a mask.
    blocks, chunk = (num_tokens // tile.chunk + num_rows) * num_heads, tile.chunk
    read, kept = (q_THK.new_empty((blocks, chunk, dims)) for _ in range(2))
    weights = q_THK.new_empty((blocks, chunk, chunk))
    decay = torch.empty((blocks, dims), dtype=torch.float32, device=q_THK.device)
    q, k, v, g = (_strides(x) for x in (q_THK, k_THK, v_THV, gate_THK))
    precision, levels = PRECISION[q_THK.dtype], 0 if gate_THK is None else chunk.bit_length() - 1
    _within[(blocks // num_heads, num_heads)](
        q_THK, k_THK, gate_THK, query_starts_B1, read, kept, decay, weights, scale, num_rows, *q, *k, *g,
        H=num_heads, K=key_dim, C=chunk, LEVELS=levels, DIMS=dims, SLICE=min(tile.slice, dims),
        PRECISION=precision, FLUSHES=not interpreting(), num_warps=tile.within_warps,
        num_stages=tile.within_stages, maxnreg=tile.within_registers,
    )  # fmt: skip
    _across[(triton.cdiv(value_dim, columns), num_heads, num_rows)](
        read, kept, decay, weights, v_THV, state_RHKV, rows_B, query_starts_B1, o_THV, *v,
        H=num_heads, K=key_dim, V=value_dim, C=chunk, DIMS=dims, COLUMNS=columns, STAGES=tile.stages,
        PRECISION=precision, num_warps=_warps(dims * columns, tile.elements_of_a_warp),
    )  # fmt: skip
    return o_THV


def recurrent_gla(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    gate_BHK: Tensor | None,
    state_RHKV: Tensor,
    rows_B: Tensor,
    scale: float,
) -> Tensor:
    num_rows, num_heads, key_dim = q_BHK.shape
    value_dim = v_BHV.shape[-1]
    o_BHV = q_BHK.new_empty(v_BHV.shape)
    if num_rows == 0:
        return o_BHV
    dims, columns = _tile(key_dim, value_dim, STEP_COLUMNS)
    strides = [s for x in (q_BHK, k_BHK, v_BHV, gate_BHK) for s in _strides(x)]
    _step[(triton.cdiv(value_dim, columns), num_heads, num_rows)](
        q_BHK, k_BHK, v_BHV, gate_BHK, state_RHKV, rows_B, o_BHV, scale, *strides,
        H=num_heads, K=key_dim, V=value_dim, DIMS=dims, COLUMNS=columns,
        num_warps=_warps(dims * columns, STEP_ELEMENTS_OF_A_WARP), **overlap(q_BHK.device),
    )  # fmt: skip
    return o_BHV


def _tile(key_dim: int, value_dim: int, most_columns: int) -> tuple[int, int]:
    """Padded key dimension, and value columns of a program: at least what a tensor core takes."""
    return max(16, power_of_two(key_dim)), max(16, min(most_columns, power_of_two(value_dim)))


def _strides(x_THK: Tensor | None) -> tuple[int, ...]:
    return (0, 0) if x_THK is None else x_THK.stride()[:2]


def _warps(state_elements: int, elements_of_a_warp: int) -> int:
    return max(1, min(8, state_elements // elements_of_a_warp))
