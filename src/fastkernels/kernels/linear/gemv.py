"""linear in Triton for 1 to 4 rows, on CUDA cores (kernels/gemv.py has the walk over the weight).

    y[t, n] = sum_k x[t, k] weight[n, k] + bias[n]

A program owns a few outputs and all inputs. Sums in float32, y is rounded once.

T rows · K inputs · N outputs.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import gemv
from fastkernels.kernels.gemv import Tile, products
from fastkernels.kernels.launch import ceil_div, overlapping, rows_of


def unsupported(kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> str | None:
    return gemv.unsupported(x_TK, weight_NK, bias_N)


@triton.jit(do_not_specialize=["T", "steps", "inner"])
def _multiply(x, weight, bias, y, T, K, N, steps, inner, outer_stride, inner_stride, weight_stride,
              ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, EVEN: tl.constexpr,
              OVERLAPS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    n, t = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, ROWS)
    # Outputs past the end read the last one's weights and write nothing.
    weight_at_N = weight + tl.minimum(n, N - 1).to(tl.int64) * weight_stride
    sum_TN = products(x, weight_at_N, T, K, steps, inner, outer_stride, inner_stride, ROWS, INPUTS, EVEN,
                      OVERLAPS, EARLY)  # fmt: skip
    if bias is not None:
        sum_TN += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    y_at = y + t[:, None] * N + n[None, :]
    tl.store(y_at, sum_TN.to(y.dtype.element_ty), mask=(t < T)[:, None] & (n < N)[None, :])


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    outputs, inputs = weight_NK.shape
    return launch(x_TK, weight_NK, bias_N, gemv.tile_of(x_TK.numel() // max(1, inputs), inputs, outputs))


def launch(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, tile: Tile) -> Tensor:
    """linear with a tile of the caller's choice."""
    outputs, inputs = weight_NK.shape
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], outputs))
    if y_TN.numel() == 0:
        return y_TN
    x = rows_of(x_TK)
    _multiply[(ceil_div(outputs, tile.outputs),)](
        x.tensor, weight_NK, bias_N, y_TN, x.count, inputs, outputs, inner=x.inner,
        outer_stride=x.outer_stride, inner_stride=x.inner_stride, weight_stride=weight_NK.stride(0),
        OUTPUTS=tile.outputs, **gemv.options(x, weight_NK, tile, overlapping(x_TK.device)),
    )  # fmt: skip
    return y_TN
