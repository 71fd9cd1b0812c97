"""window_attention in Triton: a program for each tile of queries of a head's window. It finds its pixels in
the map by arithmetic, so nothing is rolled, extended or cut into windows in memory.

    s = log2(e) (scale q k^T / (|q| |k|) + table + mask)
    m = max_j s_j,  o = sum_j 2^(s_j - m) v_j / sum_j 2^(s_j - m)

online over tiles of keys, as dense_attention. Y, X rows and columns of the map · W of a window, N = W W ·
down, across windows of a column and of a row · K head size. The table is read by place(i, j) = code(i) -
code(j) + middle, code(i) = (2 W - 1) row + column of i in its window: 529 numbers a head for W = 12, where a
bias of every pair would be 20,736.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.kernels.window_attention import APART, EPS

LOG2_E = tl.constexpr(1.4426950408889634)
SMALLEST, MASKED = tl.constexpr(EPS), tl.constexpr(APART)
MOST_QUERIES, MOST_KEYS = 64, 32  # of a tile: 144 tokens are 3 x 64 and 5 x 32
WIDEST_HEAD = 128


def unsupported(
    kernel: str,
    qkv_BYXP: Tensor,
    filler_P: Tensor,
    scale_H: Tensor,
    table_HE: Tensor,
    window: int,
    shift: int,
) -> str | None:
    if (head_size := qkv_BYXP.shape[-1] // (3 * len(scale_H))) > WIDEST_HEAD:
        return f"serves head sizes up to {WIDEST_HEAD}, not {head_size}"
    if not all(tensor.is_contiguous() for tensor in (qkv_BYXP, filler_P, scale_H, table_HE)):
        return "needs contiguous tensors"
    if scale_H.dtype != torch.float32 or table_HE.dtype != torch.float32:
        return "needs scale and table in float32"
    return checks.not_float32_compute(qkv_BYXP, filler_P)


@triton.jit
def _pixel(token, top, left, Y, X, SHIFT: tl.constexpr, W: tl.constexpr):
    """(row, column) of tokens of the window at (top, left) in the map, and whether they are in it."""
    row, column = top + token // W, left + token % W
    inside = (token < W * W) & (row < Y) & (column < X)
    return (row + SHIFT) % Y, (column + SHIFT) % X, inside


@triton.jit
def _region(token, top, left, high, wide, SHIFT: tl.constexpr, W: tl.constexpr):
    row, column = top + token // W, left + token % W
    down = (row >= high - W).to(tl.int32) + (row >= high - SHIFT).to(tl.int32)
    right = (column >= wide - W).to(tl.int32) + (column >= wide - SHIFT).to(tl.int32)
    return 3 * down + right


@triton.jit
def _taken(qkv, filler, pixel, inside, first, d, is_token, C: tl.constexpr, K: tl.constexpr):
    """[tokens, DIMS] from channel `first` of q, k, v on; of tokens outside the map what fills it up."""
    is_d = (d < K)[None, :]
    value = tl.load(
        qkv + pixel[:, None] * (3 * C) + (first + d)[None, :], mask=inside[:, None] & is_d, other=0.0
    )
    outside = tl.load(filler + first + d, mask=d < K, other=0.0)[None, :]
    return tl.where(inside[:, None] | ~is_token[:, None], value, outside)


@triton.jit
def _over_length(x):
    """1 / max(|x|, 1e-12) of each row."""
    wide = x.to(tl.float32)
    length = tl.sqrt_rn(tl.sum(wide * wide, axis=1))
    return tl.div_rn(tl.full(length.shape, 1.0, tl.float32), tl.maximum(length, SMALLEST))


@triton.jit(do_not_specialize=["Y", "X", "down", "across"])
def _attend(qkv, filler, scale, table, out, Y, X, down, across, H: tl.constexpr, K: tl.constexpr,
            DIMS: tl.constexpr, W: tl.constexpr, SHIFT: tl.constexpr, QUERIES: tl.constexpr,
            KEYS: tl.constexpr):  # fmt: skip
    head, tiles = tl.program_id(1), tl.cdiv(W * W, QUERIES)
    C: tl.constexpr = H * K
    N: tl.constexpr = W * W
    tile, window = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    image = (window // (down * across)).to(tl.int64)
    top, left = window // across % down * W, window % across * W
    high, wide = down * W, across * W

    i, d = tile * QUERIES + tl.arange(0, QUERIES), tl.arange(0, DIMS)
    i_row, i_column, i_inside = _pixel(i, top, left, Y, X, SHIFT, W)
    i_pixel = (image * Y + i_row) * X + i_column
    q = _taken(qkv, filler, i_pixel, i_inside, head * K, d, i < N, C, K)
    to_log2 = _over_length(q) * (tl.load(scale + head) * LOG2_E)
    i_code = i // W * (2 * W - 1) + i % W + (2 * W * (W - 1))
    i_region = _region(i, top, left, high, wide, SHIFT, W)
    own_table = table + head * (2 * W - 1) * (2 * W - 1)

    best = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, DIMS], tl.float32)
    for start in range(0, N, KEYS):
        j = start + tl.arange(0, KEYS)
        j_row, j_column, j_inside = _pixel(j, top, left, Y, X, SHIFT, W)
        j_pixel = (image * Y + j_row) * X + j_column
        k = _taken(qkv, filler, j_pixel, j_inside, C + head * K, d, j < N, C, K)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * to_log2[:, None] * _over_length(k)[None, :]
        j_code = j // W * (2 * W - 1) + j % W
        both = (i < N)[:, None] & (j < N)[None, :]
        bias = tl.load(own_table + (i_code[:, None] - j_code[None, :]), mask=both, other=0.0)
        if SHIFT:
            j_region = _region(j, top, left, high, wide, SHIFT, W)
            bias += tl.where(i_region[:, None] == j_region[None, :], 0.0, MASKED)
        scores = tl.where((j < N)[None, :], scores + bias * LOG2_E, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - new_best[:, None])
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(weights, 1)
        v = _taken(qkv, filler, j_pixel, j_inside, 2 * C + head * K, d, j < N, C, K)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        best = new_best

    o = (acc / total[:, None]).to(out.dtype.element_ty)
    to = out + i_pixel[:, None] * C + (head * K + d)[None, :]
    tl.store(to, o, mask=i_inside[:, None] & (d < K)[None, :])


def window_attention(
    qkv_BYXP: Tensor, filler_P: Tensor, scale_H: Tensor, table_HE: Tensor, window: int, shift: int
) -> Tensor:
    images, rows, columns, packed = qkv_BYXP.shape
    o_BYXC = qkv_BYXP.new_empty((images, rows, columns, packed // 3))
    if o_BYXC.numel() == 0:
        return o_BYXC
    heads = len(scale_H)
    size = packed // (3 * heads)
    down, across = ceil_div(rows, window), ceil_div(columns, window)
    queries, keys = (max(16, min(most, power_of_two(window**2))) for most in (MOST_QUERIES, MOST_KEYS))
    _attend[(ceil_div(window**2, queries) * images * down * across, heads)](
        qkv_BYXP, filler_P, scale_H, table_HE, o_BYXC, rows, columns, down, across, H=heads, K=size,
        DIMS=max(16, power_of_two(size)), W=window, SHIFT=shift, QUERIES=queries, KEYS=keys, num_warps=4,
    )  # fmt: skip
    return o_BYXC
