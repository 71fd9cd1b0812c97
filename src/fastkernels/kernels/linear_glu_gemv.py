"""linear_glu in Triton for one row, on CUDA cores (kernels/gemv.py has the walk over the weight).

    y[f] = act(g[f]) * u[f]        g[f] = sum_d x[d] weight[f, d] + bias[f],  u at rows F + f

A program owns a few f and all inputs: the gates' rows of the weight and those of what they gate. Products,
activation and y in float32, rounded once.

T rows (one) · D inputs · F outputs.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import gemv
from fastkernels.kernels.activated import activated
from fastkernels.kernels.gemv import Tile, product
from fastkernels.kernels.launch import ceil_div, rows_of


def unsupported(
    kernel: str, x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str
) -> str | None:
    return gemv.unsupported(x_TD, weight_2FD, bias_2F)


@triton.jit(do_not_specialize=["steps"])
def _multiply(x, weight, bias, y, D, F, steps, weight_stride, PAIRS: tl.constexpr, INPUTS: tl.constexpr,
              EVEN: tl.constexpr, OVERLAPS: tl.constexpr, EARLY: tl.constexpr,
              ACTIVATION: tl.constexpr):  # fmt: skip
    f = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    # Gate and up side by side, so that a split takes them apart. Outputs past the end read the last one's
    # weights and write nothing.
    pair = tl.arange(0, 2 * PAIRS)
    row = tl.minimum(tl.program_id(0) * PAIRS + pair // 2, F - 1) + pair % 2 * F
    weight_at_N = weight + row.to(tl.int64) * weight_stride
    sum_N = product(x, weight_at_N, D, steps, INPUTS, EVEN, OVERLAPS, EARLY)
    if bias is not None:
        sum_N += tl.load(bias + row).to(tl.float32)
    gate_F, up_F = tl.split(tl.reshape(sum_N, [PAIRS, 2]))
    result = activated(gate_F, ACTIVATION) * up_F
    tl.store(y + f, result.to(y.dtype.element_ty), mask=f < F)


def linear_glu(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str) -> Tensor:
    return launch(x_TD, weight_2FD, bias_2F, activation, gemv.tile_of(weight_2FD.shape[1]))


def launch(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str, tile: Tile) -> Tensor:
    """linear_glu with a tile of the caller's choice; half of its outputs are gates."""
    outputs, inputs = weight_2FD.shape[0] // 2, weight_2FD.shape[1]
    y_TF = x_TD.new_empty((*x_TD.shape[:-1], outputs))
    if y_TF.numel() == 0:
        return y_TF
    pairs = tile.outputs // 2
    _multiply[(ceil_div(outputs, pairs),)](
        rows_of(x_TD).tensor, weight_2FD, bias_2F, y_TF, inputs, outputs, weight_stride=weight_2FD.stride(0),
        PAIRS=pairs, ACTIVATION=activation, **gemv.options(weight_2FD, tile),
    )  # fmt: skip
    return y_TF
