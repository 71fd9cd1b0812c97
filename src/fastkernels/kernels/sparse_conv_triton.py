"""sparse_conv in Triton: voxels are fetched where they are multiplied, and no copy of them is made.

    y[n, o] = sum_k sum_c x[neighbors[n, k], c] weight[o, k C + c]

A program owns VOXELS by OUTPUTS results. It goes through the taps; of one that none of its voxels has a
neighbour at it reads nothing but the table. Sums in float32; float32 is multiplied in full.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.kernels.overlap import follow, overlap

VOXELS, MOST_OUTPUTS, MOST_CHANNELS = 32, 64, 32
LEAST = 16  # of a product's sides


def unsupported(
    kernel: str, x_NC: Tensor, neighbors_NT: Tensor, weight_OI: Tensor, bias_O: Tensor | None
) -> str | None:
    if x_NC.stride(-1) != 1 or not neighbors_NT.is_contiguous() or not weight_OI.is_contiguous():
        return "needs contiguous rows, table and filters"
    return checks.not_float32_compute(x_NC, weight_OI, *checks.given(bias_O))


@triton.jit(do_not_specialize=["N"])
def _convolve(x, neighbors, weight, bias, y, row_stride, N, C, M, TAPS: tl.constexpr, HAS_BIAS: tl.constexpr,
              PRECISION: tl.constexpr, VOXELS: tl.constexpr, OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr,
              OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    n = tl.program_id(0) * VOXELS + tl.arange(0, VOXELS)
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    sums = tl.zeros([VOXELS, OUTPUTS], tl.float32)
    for tap in range(TAPS):
        m = tl.load(neighbors + n.to(tl.int64) * TAPS + tap, mask=n < N, other=-1)
        if tl.max(m, 0) >= 0:
            for begin in range(0, C, CHANNELS):
                c = begin + tl.arange(0, CHANNELS)
                x_at = x + m.to(tl.int64)[:, None] * row_stride + c[None, :]
                part = tl.load(x_at, mask=(m >= 0)[:, None] & (c < C)[None, :], other=0.0)
                w_at = weight + o.to(tl.int64)[None, :] * (TAPS * C) + (tap * C + c)[:, None]
                filters = tl.load(w_at, mask=(o < M)[None, :] & (c < C)[:, None], other=0.0)
                sums = tl.dot(part, filters, sums, input_precision=PRECISION)
    if HAS_BIAS:
        sums += tl.load(bias + o, mask=o < M, other=0.0).to(tl.float32)[None, :]
    y_at = y + n.to(tl.int64)[:, None] * M + o[None, :]
    tl.store(y_at, sums.to(y.dtype.element_ty), mask=(n < N)[:, None] & (o < M)[None, :])


def sparse_conv(x_NC: Tensor, neighbors_NT: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    (voxels, channels), outputs = x_NC.shape, len(weight_OI)
    y_NO = x_NC.new_empty(voxels, outputs)
    if y_NO.numel() == 0:
        return y_NO
    wide = max(LEAST, min(MOST_OUTPUTS, power_of_two(outputs)))
    _convolve[(ceil_div(voxels, VOXELS), ceil_div(outputs, wide))](
        x_NC, neighbors_NT, weight_OI, bias_O, y_NO, x_NC.stride(0), voxels, channels, outputs,
        TAPS=neighbors_NT.shape[1], HAS_BIAS=bias_O is not None,
        PRECISION="ieee" if x_NC.dtype == torch.float32 else "tf32", VOXELS=VOXELS, OUTPUTS=wide,
        CHANNELS=max(LEAST, min(MOST_CHANNELS, power_of_two(channels))), num_warps=4, **overlap(x_NC.device),
    )  # fmt: skip
    return y_NO
