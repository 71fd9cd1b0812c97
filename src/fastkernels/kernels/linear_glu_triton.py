"""linear_glu in Triton for 1 to 32 rows, on tensor cores (kernels/skinny.py has the walk over the weight).

    y[t, f] = act(g[t, f]) * u[t, f]        g[t, f] = sum_d x[t, d] weight[f, d] + bias[f],  u at rows F + f

A program owns a tile of rows of the weight, half of them gates and half what they gate, so that its sums need
no way through memory. Products, activation and y in float32, rounded once.

T rows · D inputs · F outputs.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import skinny
from fastkernels.kernels.activated import activated
from fastkernels.kernels.skinny import Tile, all_splits, product, weight_row


def unsupported(
    kernel: str, x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str
) -> str | None:
    return skinny.unsupported(x_TD, weight_2FD, bias_2F)


@triton.jit
def _finish(sum_NT, bias, y, T, N, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr):
    pairs: tl.constexpr = OUTPUTS // 2
    f, t = tl.program_id(0) * pairs + tl.arange(0, pairs), tl.arange(0, ROWS)
    if bias is not None:
        row = weight_row(tl.program_id(0), tl.arange(0, OUTPUTS), N, OUTPUTS, 2)
        sum_NT += tl.load(bias + row).to(tl.float32)[:, None]
    # A tile of 128 rows has both of a pair in one thread, as wgmma leaves them: nothing moves here.
    gate_FT, up_FT = tl.split(tl.permute(tl.reshape(sum_NT, [2, pairs, ROWS]), (1, 2, 0)))
    result_FT = activated(gate_FT, ACTIVATION) * up_FT
    F = N // 2
    y_at = y + t[None, :] * F + f[:, None]
    tl.store(y_at, result_FT.to(y.dtype.element_ty), mask=(t < T)[None, :] & (f < F)[:, None])


@triton.jit(do_not_specialize=["T", "steps", "inner"])
def _multiply(x, weight, bias, y, partial, counters, T, K, N, steps, inner, outer_stride, inner_stride,
              weight_stride, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
              SPLITS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr, OVERLAPS: tl.constexpr,
              AHEAD: tl.constexpr, PIECES: tl.constexpr, ACTIVATION: tl.constexpr):  # fmt: skip
    sum_NT = product(x, weight, T, K, N, steps, inner, outer_stride, inner_stride, weight_stride, ROWS,
                     OUTPUTS, 2, INPUTS, STAGES, EVEN, OVERLAPS, AHEAD, PIECES)  # fmt: skip
    if SPLITS == 1:
        _finish(sum_NT, bias, y, T, N, OUTPUTS, ROWS, ACTIVATION)
    else:
        total_NT, last = all_splits(sum_NT, partial, counters, OUTPUTS, ROWS, SPLITS)
        if last:
            _finish(total_NT, bias, y, T, N, OUTPUTS, ROWS, ACTIVATION)


def linear_glu(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str) -> Tensor:
    return launch(x_TD, weight_2FD, bias_2F, activation, skinny.tile_for(x_TD, weight_2FD))


def launch(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str, tile: Tile) -> Tensor:
    """linear_glu with a tile of the caller's choice; half of its outputs are gates."""
    outputs = weight_2FD.shape[0]
    y_TF = x_TD.new_empty((*x_TD.shape[:-1], outputs // 2))
    if y_TF.numel() == 0:
        return y_TF
    _multiply[skinny.grid(outputs, tile)](
        bias=bias_2F, y=y_TF, ACTIVATION=activation, **skinny.options(x_TD, weight_2FD, tile)
    )
    return y_TF
