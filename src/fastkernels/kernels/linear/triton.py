"""linear in Triton for few rows, where a product is a walk over the weight at the speed of memory.

A program owns some outputs and walks along their rows of the weight in tiles [outputs, inputs]. Nothing of a
weight depends on the kernel before, so the first tile is on its way while that one still runs (programmatic
dependent launch), and every later one while the tile before it is multiplied.

T rows · K inputs · N outputs.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, overlapping, power_of_two, rows_of

MOST_ROWS = 8


class Tile(NamedTuple):
    """What one program holds at a time: `outputs` rows of the weight, `inputs` columns of them."""

    outputs: int
    inputs: int
    warps: int


def unsupported(kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> str | None:
    count = x_TK.numel() // max(1, x_TK.shape[-1])
    if count > MOST_ROWS:
        return f"serves up to {MOST_ROWS} rows, not {count}"
    if weight_NK.stride(-1) != 1:
        return "needs weights with a contiguous last dimension"
    return checks.not_float32_compute(x_TK, weight_NK, *(() if bias_N is None else (bias_N,)))


@triton.jit(do_not_specialize=["inner"])
def _walk(x, weight, bias, y, inner, outer_stride, inner_stride, weight_stride,
          T: tl.constexpr, K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
          INPUTS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    n, k, t = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS), tl.arange(0, ROWS)
    weight_at = weight + n.to(tl.int64)[:, None] * weight_stride + k[None, :]
    tile_NK = tl.load(weight_at, mask=(n < N)[:, None] & (k < K)[None, :], other=0.0)
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    x_at = x + ((t // inner) * outer_stride + (t % inner) * inner_stride)[:, None] + k[None, :]
    sum_TN = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, K, INPUTS):
        x_TK = tl.load(x_at + start, mask=(t < T)[:, None] & (k < K - start)[None, :], other=0.0)
        left = K - start - INPUTS
        ahead_NK = tl.load(weight_at + start + INPUTS, mask=(n < N)[:, None] & (k < left)[None, :], other=0.0)
        sum_TN += tl.sum(x_TK.to(tl.float32)[:, None, :] * tile_NK.to(tl.float32)[None, :, :], 2)
        tile_NK = ahead_NK
    if bias is not None:
        sum_TN += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    y_at = y + t[:, None] * N + n[None, :]
    tl.store(y_at, sum_TN.to(y.dtype.element_ty), mask=(t < T)[:, None] & (n < N)[None, :])


def tile_of(rows: int, inputs: int, outputs: int) -> Tile:
    """The fastest for one row on an H200 (two outputs by 2,048 inputs, in bf16); more rows take shorter
    tiles, so that their products fit in the same registers."""
    tall = 4 if outputs >= 1 << 16 else 2
    return Tile(tall, min(2048 // rows, power_of_two(inputs)), tall)


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    outputs, inputs = weight_NK.shape
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], outputs))
    if y_TN.numel() == 0:
        return y_TN
    x = rows_of(x_TK)
    rows = power_of_two(x.count)
    tile, overlaps = tile_of(rows, inputs, outputs), overlapping(x_TK.device)
    _walk[(ceil_div(outputs, tile.outputs),)](
        x.tensor, weight_NK, bias_N, y_TN, x.inner, x.outer_stride, x.inner_stride, weight_NK.stride(0),
        T=x.count, K=inputs, N=outputs, ROWS=rows, OUTPUTS=tile.outputs, INPUTS=tile.inputs,
        OVERLAPS=overlaps, num_warps=tile.warps, **({"launch_pdl": True} if overlaps else {}),
    )  # fmt: skip
    return y_TN
