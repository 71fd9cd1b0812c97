"""grouped_linear_glu in Triton: grouped_linear's program with a tile of gates and the tile of their inputs.

S slots · R slots of a row of x · E experts · F outputs · K inputs · TILE_M x TILE_N of y by one program: half
as many columns as there, so that both products fit where its one does.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import grouped_linear_triton as plain
from fastkernels.kernels.activated import activated
from fastkernels.kernels.grouped_linear_triton import SMALLEST_DOT, most_row_tiles, tile_for
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.kernels.overlap import follow, overlap

unsupported = plain.unsupported


@triton.jit(do_not_specialize=["row_tiles"])
def _multiply(x, weight, order, starts, y, row_tiles, x_stride, w_stride_e, w_stride_n,
              R: tl.constexpr, E: tl.constexpr, F: tl.constexpr, K: tl.constexpr, NAME: tl.constexpr,
              EXPERTS: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
              TOGETHER: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    column_tiles: tl.constexpr = (F + TILE_N - 1) // TILE_N
    row_tile, column_tile = plain.place_of(tl.program_id(0), row_tiles, column_tiles, TOGETHER)
    expert, slot, real = plain.rows_of_tile(order, starts, row_tile, E, EXPERTS, TILE_M)
    if expert == EXPERTS:
        return
    n, k = column_tile * TILE_N + tl.arange(0, TILE_N), tl.arange(0, TILE_K)
    x_at = x + (slot // R)[:, None] * x_stride + k[None, :]
    gate_at = weight + expert.to(tl.int64) * w_stride_e + n.to(tl.int64)[None, :] * w_stride_n + k[:, None]
    up_at = gate_at + F * w_stride_n.to(tl.int64)
    gate = tl.zeros([TILE_M, TILE_N], tl.float32)
    up = tl.zeros([TILE_M, TILE_N], tl.float32)
    for start in range(0, K, TILE_K):
        left = k < K - start
        inside = left[:, None] & (n < F)[None, :]
        x_tile = tl.load(x_at + start, mask=real[:, None] & left[None, :], other=0.0)
        gate_tile = tl.load(gate_at + start, mask=inside, other=0.0)
        up_tile = tl.load(up_at + start, mask=inside, other=0.0)
        gate = tl.dot(x_tile, gate_tile, gate, input_precision="ieee")
        up = tl.dot(x_tile, up_tile, up, input_precision="ieee")
    # Rounded as the product is where it is a kernel of its own.
    gate = gate.to(y.dtype.element_ty).to(tl.float32)
    up = up.to(y.dtype.element_ty).to(tl.float32)
    out = y + slot[:, None] * F + n[None, :]
    result = (activated(gate, NAME) * up).to(y.dtype.element_ty)
    tl.store(out, result, mask=real[:, None] & (n < F)[None, :])


def grouped_linear_glu(
    x_RK: Tensor, weight_E2FK: Tensor, order_S: Tensor, starts_E1: Tensor, activation: str
) -> Tensor:
    slots, (experts, both, inputs) = order_S.shape[0], weight_E2FK.shape
    outputs = both // 2
    y_SF = x_RK.new_empty((slots, outputs))
    if y_SF.numel() == 0:
        return y_SF
    tile = tile_for(slots, experts)
    tile_n = min(tile.n // 2, max(SMALLEST_DOT, power_of_two(outputs)))
    tile_k = min(tile.k * 2 // x_RK.element_size(), max(SMALLEST_DOT, power_of_two(inputs)))
    row_tiles = most_row_tiles(slots, experts, tile.m)
    _multiply[(row_tiles * ceil_div(outputs, tile_n),)](
        x_RK, weight_E2FK, order_S, starts_E1, y_SF, row_tiles, x_RK.stride(0), *weight_E2FK.stride()[:2],
        R=slots // x_RK.shape[0], E=experts, F=outputs, K=inputs, NAME=activation,
        EXPERTS=power_of_two(experts), TILE_M=tile.m, TILE_N=tile_n, TILE_K=tile_k, TOGETHER=tile.together,
        num_warps=tile.num_warps, num_stages=tile.num_stages, **overlap(x_RK.device),
    )  # fmt: skip
    return y_SF
