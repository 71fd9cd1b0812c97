"""linear, linear_activation and linear_float32 in Triton for 1 to 32 rows, on tensor cores (kernels/skinny.py
has the walk over the weight).

    y[t, n] = sum_k x[t, k] weight[n, k] + bias[n]

A program owns a tile of outputs. Sums in float32, rounded once to the dtype of y, after the activation.

T rows · K inputs · N outputs.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import skinny
from fastkernels.kernels.activated import activated
from fastkernels.kernels.activation import Name
from fastkernels.kernels.skinny import Tile, all_splits, product


def unsupported(
    kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, *name: Name
) -> str | None:
    return skinny.unsupported(x_TK, weight_NK, bias_N)


@triton.jit
def _finish(sum_NT, bias, y, T, N, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr):
    n, t = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, ROWS)
    if bias is not None:
        sum_NT += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION is not None:
        sum_NT = activated(sum_NT, ACTIVATION)
    y_at = y + t[None, :] * N + n[:, None]
    tl.store(y_at, sum_NT.to(y.dtype.element_ty), mask=(t < T)[None, :] & (n < N)[:, None])


@triton.jit(do_not_specialize=["T", "steps", "inner"])
def _multiply(x, weight, bias, y, partial, counters, T, K, N, steps, inner, outer_stride, inner_stride,
              weight_stride, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
              SPLITS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr, OVERLAPS: tl.constexpr,
              AHEAD: tl.constexpr, PIECES: tl.constexpr, ACTIVATION: tl.constexpr):  # fmt: skip
    sum_NT = product(x, weight, T, K, N, steps, inner, outer_stride, inner_stride, weight_stride, ROWS,
                     OUTPUTS, 1, INPUTS, STAGES, EVEN, OVERLAPS, AHEAD, PIECES)  # fmt: skip
    if SPLITS == 1:
        _finish(sum_NT, bias, y, T, N, OUTPUTS, ROWS, ACTIVATION)
    else:
        total_NT, last = all_splits(sum_NT, partial, counters, OUTPUTS, ROWS, SPLITS)
        if last:
            _finish(total_NT, bias, y, T, N, OUTPUTS, ROWS, ACTIVATION)


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, skinny.tile_for(x_TK, weight_NK))


def linear_activation(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: Name) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, skinny.tile_for(x_TK, weight_NK), activation=name)


def linear_float32(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, skinny.tile_for(x_TK, weight_NK), torch.float32)


def launch(
    x_TK: Tensor,
    weight_NK: Tensor,
    bias_N: Tensor | None,
    tile: Tile,
    dtype: torch.dtype | None = None,
    activation: Name | None = None,
) -> Tensor:
    """linear with a tile of the caller's choice, and an activation behind it; y in `dtype`, without one in
    that of x."""
    outputs = weight_NK.shape[0]
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], outputs), dtype=dtype)
    if y_TN.numel() == 0:
        return y_TN
    _multiply[skinny.grid(outputs, tile)](
        bias=bias_N, y=y_TN, ACTIVATION=activation, **skinny.options(x_TK, weight_NK, tile)
    )
    return y_TN
