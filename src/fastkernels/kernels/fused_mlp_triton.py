"""fused_mlp in Triton: a program takes some rows through all layers, and only y leaves it.

Widths are padded with zeros to powers of two of at least 16, which `tl.dot` multiplies. Weights are read by
every program: they stay in the cache.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64  # rows
MOST_WIDTH = 128
LAYERS = (2, 3)


def unsupported(kernel: str, x_MK: Tensor, weights: Sequence[Tensor]) -> str | None:
    if x_MK.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"takes up to 32 bits, not {x_MK.dtype}"
    if any(weight.dtype != x_MK.dtype for weight in weights):
        return "takes weights of the rows' dtype"
    if len(weights) not in LAYERS:
        return f"takes {LAYERS} layers, not {len(weights)}"
    if max(x_MK.shape[1], *map(len, weights)) > MOST_WIDTH:
        return f"takes widths of up to {MOST_WIDTH}"
    if not all(tensor.is_contiguous() for tensor in (x_MK, *weights)):
        return "needs contiguous tensors"
    return None


@triton.jit
def _layer(h, weight, inputs, outputs, IN: tl.constexpr, OUT: tl.constexpr):
    """h [B, IN] W^T, W [outputs, inputs]"""
    k, n = tl.arange(0, IN), tl.arange(0, OUT)
    is_there = (k[:, None] < inputs) & (n[None, :] < outputs)
    w = tl.load(weight + n[None, :] * inputs + k[:, None], mask=is_there, other=0.0)
    return tl.dot(h, w, input_precision="ieee")


@triton.jit(do_not_specialize=["rows"])
def _perceptron(x, first, second, last, y, rows, inputs, hidden, outputs, IN: tl.constexpr,
                HIDDEN: tl.constexpr, OUT: tl.constexpr, IS_DEEP: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    k, n = tl.arange(0, IN), tl.arange(0, OUT)
    is_input = (row[:, None] < rows) & (k[None, :] < inputs)
    given = tl.load(x + row[:, None] * inputs + k[None, :], mask=is_input, other=0.0)
    h = tl.maximum(_layer(given, first, inputs, hidden, IN, HIDDEN), 0.0).to(given.dtype)
    if IS_DEEP:
        h = tl.maximum(_layer(h, second, hidden, hidden, HIDDEN, HIDDEN), 0.0).to(given.dtype)
    found = _layer(h, last, hidden, outputs, HIDDEN, OUT)
    is_output = (row[:, None] < rows) & (n[None, :] < outputs)
    tl.store(y + row[:, None] * outputs + n[None, :], found.to(y.dtype.element_ty), mask=is_output)


def fused_mlp(x_MK: Tensor, weights: Sequence[Tensor]) -> Tensor:
    rows, inputs = x_MK.shape
    hidden, outputs = len(weights[0]), len(weights[-1])
    y_MN = x_MK.new_empty(rows, outputs)
    if rows:
        _perceptron[(triton.cdiv(rows, BLOCK),)](
            x_MK, weights[0], weights[1], weights[-1], y_MN, rows, inputs, hidden, outputs,
            IN=_padded(inputs), HIDDEN=_padded(hidden), OUT=_padded(outputs), IS_DEEP=len(weights) == 3,
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return y_MN


def _padded(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())
