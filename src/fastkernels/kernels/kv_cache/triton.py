"""store_kv as one Triton kernel: a program copies a few tokens' keys and values, all heads."""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import multiprocessors
from fastkernels.kernels.overlap import follow, overlap

# Elements that one program moves for K and as many for V: 8 KiB each in bf16, enough 16-byte loads for 4
# warps.
TILE_ELEMENTS = 4096


def unsupported(
    kernel: str, key_TJK: Tensor, value_TJK: Tensor, k_cache: Tensor, v_cache: Tensor, slots_T: Tensor
) -> str | None:
    if not key_TJK.stride(-1) == value_TJK.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1:
        return "needs a contiguous last dimension"
    return checks.not_alike(key_TJK, value_TJK, k_cache, v_cache)


@triton.jit(do_not_specialize=["num_tokens"])
def _store(key, value, k_cache, v_cache, slots, num_tokens,
           key_stride_t, key_stride_j, value_stride_t, value_stride_j,
           k_stride_n, k_stride_p, k_stride_j, v_stride_n, v_stride_p, v_stride_j,
           J: tl.constexpr, K: tl.constexpr, P: tl.constexpr,
           TOKENS: tl.constexpr, HEADS: tl.constexpr, DIMS: tl.constexpr,
           OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    t = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    flat = tl.arange(0, HEADS * DIMS)
    j, d = flat // DIMS, flat % DIMS
    slot = tl.load(slots + t, mask=t < num_tokens, other=0)
    mask = (t < num_tokens)[:, None] & ((j < J) & (d < K))[None, :]
    k = tl.load(key + t[:, None] * key_stride_t + (j * key_stride_j + d)[None, :], mask=mask)
    v = tl.load(value + t[:, None] * value_stride_t + (j * value_stride_j + d)[None, :], mask=mask)
    block, offset = slot // P, slot % P
    k_row, v_row = block * k_stride_n + offset * k_stride_p, block * v_stride_n + offset * v_stride_p
    tl.store(k_cache + k_row[:, None] + (j * k_stride_j + d)[None, :], k, mask=mask)
    tl.store(v_cache + v_row[:, None] + (j * v_stride_j + d)[None, :], v, mask=mask)


def store_kv(key_TJK: Tensor, value_TJK: Tensor, k_cache: Tensor, v_cache: Tensor, slots_T: Tensor) -> None:
    num_tokens, num_heads, head_dim = key_TJK.shape
    if num_tokens == 0:
        return
    heads, dims = triton.next_power_of_2(num_heads), triton.next_power_of_2(head_dim)
    tokens = max(1, TILE_ELEMENTS // (heads * dims))
    # Few tokens: one for each program, so that a decode step spreads over the device.
    tokens = min(tokens, triton.next_power_of_2(triton.cdiv(num_tokens, multiprocessors(key_TJK.device))))
    _store[(triton.cdiv(num_tokens, tokens),)](
        key_TJK, value_TJK, k_cache, v_cache, slots_T, num_tokens,
        key_TJK.stride(0), key_TJK.stride(1), value_TJK.stride(0), value_TJK.stride(1),
        *k_cache.stride()[:3], *v_cache.stride()[:3],
        J=num_heads, K=head_dim, P=k_cache.shape[1], TOKENS=tokens, HEADS=heads, DIMS=dims,
        **overlap(key_TJK.device),
    )  # fmt: skip
