"""linear_glu in Triton for 1 to 4 rows, on CUDA cores (kernels/gemv.py has the walk over the weight).

    y[t, f] = act(g[t, f]) * u[t, f]        g[t, f] = sum_d x[t, d] weight[f, d] + bias[f],  u at rows F + f

A program owns a few f and all inputs: the gates' rows of the weight and those of what they gate. Products,
activation and y in float32, rounded once.

T rows · D inputs · F outputs.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import gemv
from fastkernels.kernels.activated import activated
from fastkernels.kernels.gemv import Tile, products
from fastkernels.kernels.launch import ceil_div, overlapping, rows_of


def unsupported(
    kernel: str, x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str
) -> str | None:
    return gemv.unsupported(x_TD, weight_2FD, bias_2F)


@triton.jit(do_not_specialize=["T", "steps", "inner"])
def _multiply(x, weight, bias, y, T, D, F, steps, inner, outer_stride, inner_stride, weight_stride,
              ROWS: tl.constexpr, PAIRS: tl.constexpr, INPUTS: tl.constexpr, EVEN: tl.constexpr,
              OVERLAPS: tl.constexpr, EARLY: tl.constexpr, ACTIVATION: tl.constexpr):  # fmt: skip
    f, t = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS), tl.arange(0, ROWS)
    # Gate and up side by side, so that a split takes them apart. Outputs past the end read the last one's
    # weights and write nothing.
    pair = tl.arange(0, 2 * PAIRS)
    row = tl.minimum(tl.program_id(0) * PAIRS + pair // 2, F - 1) + pair % 2 * F
    weight_at_N = weight + row.to(tl.int64) * weight_stride
    sum_TN = products(x, weight_at_N, T, D, steps, inner, outer_stride, inner_stride, ROWS, INPUTS, EVEN,
                      OVERLAPS, EARLY)  # fmt: skip
    if bias is not None:
        sum_TN += tl.load(bias + row).to(tl.float32)[None, :]
    gate_TF, up_TF = tl.split(tl.reshape(sum_TN, [ROWS, PAIRS, 2]))
    result = activated(gate_TF, ACTIVATION) * up_TF
    y_at = y + t[:, None] * F + f[None, :]
    tl.store(y_at, result.to(y.dtype.element_ty), mask=(t < T)[:, None] & (f < F)[None, :])


def linear_glu(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str) -> Tensor:
    rows, inputs = weight_2FD.shape
    tile = gemv.tile_of(x_TD.numel() // max(1, inputs), inputs, rows)
    return launch(x_TD, weight_2FD, bias_2F, activation, tile)


def launch(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str, tile: Tile) -> Tensor:
    """linear_glu with a tile of the caller's choice; half of its outputs are gates."""
    outputs, inputs = weight_2FD.shape[0] // 2, weight_2FD.shape[1]
    y_TF = x_TD.new_empty((*x_TD.shape[:-1], outputs))
    if y_TF.numel() == 0:
        return y_TF
    x, pairs = rows_of(x_TD), tile.outputs // 2
    _multiply[(ceil_div(outputs, pairs),)](
        x.tensor, weight_2FD, bias_2F, y_TF, x.count, inputs, outputs, inner=x.inner,
        outer_stride=x.outer_stride, inner_stride=x.inner_stride, weight_stride=weight_2FD.stride(0),
        PAIRS=pairs, ACTIVATION=activation,
        **gemv.options(x, weight_2FD, tile, overlapping(x_TD.device)),
    )  # fmt: skip
    return y_TF
