"""linear, linear_activation and linear_float32 in Triton for one row, on CUDA cores (kernels/gemv.py has the
walk over the weight).

    y[n] = sum_k x[k] weight[n, k] + bias[n]

A program owns a few outputs and all inputs. Sums in float32, rounded once to the dtype of y, after the
activation.

T rows (one) · K inputs · N outputs.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import gemv
from fastkernels.kernels.activated import activated
from fastkernels.kernels.activation import Name
from fastkernels.kernels.gemv import Tile, product
from fastkernels.kernels.launch import ceil_div, rows_of


def unsupported(
    kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, *name: Name
) -> str | None:
    return gemv.unsupported(x_TK, weight_NK, bias_N)


@triton.jit(do_not_specialize=["steps"])
def _multiply(x, weight, bias, y, K, N, steps, weight_stride, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
              EVEN: tl.constexpr, OVERLAPS: tl.constexpr, EARLY: tl.constexpr,
              ACTIVATION: tl.constexpr):  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    # Outputs past the end read the last one's weights and write nothing.
    weight_at_N = weight + tl.minimum(n, N - 1).to(tl.int64) * weight_stride
    sum_N = product(x, weight_at_N, K, steps, INPUTS, EVEN, OVERLAPS, EARLY)
    if bias is not None:
        sum_N += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    if ACTIVATION is not None:
        sum_N = activated(sum_N, ACTIVATION)
    tl.store(y + n, sum_N.to(y.dtype.element_ty), mask=n < N)


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, gemv.tile_of(weight_NK.shape[1]))


def linear_activation(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: Name) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, gemv.tile_of(weight_NK.shape[1]), activation=name)


def linear_float32(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, gemv.tile_of(weight_NK.shape[1]), torch.float32)


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
    outputs, inputs = weight_NK.shape
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], outputs), dtype=dtype)
    if y_TN.numel() == 0:
        return y_TN
    _multiply[(ceil_div(outputs, tile.outputs),)](
        rows_of(x_TK).tensor, weight_NK, bias_N, y_TN, inputs, outputs, weight_stride=weight_NK.stride(0),
        OUTPUTS=tile.outputs, ACTIVATION=activation, **gemv.options(weight_NK, tile),
    )  # fmt: skip
    return y_TN
