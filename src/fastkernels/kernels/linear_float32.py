"""A linear layer whose sums are not rounded: logits.

    y[t, n] = sum_k x[t, k] weight[n, k] + bias[n]

T tokens · K inputs · N outputs. weight is [N, K], as checkpoints store it. Accumulates in at least float32;
y is float32, float64 for float64 inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from fastkernels.kernels import checks
from fastkernels.kernels.base import Implementation, Kernel


def _fake(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    dtype = torch.promote_types(x_TK.dtype, torch.float32)
    return x_TK.new_empty((*x_TK.shape[:-1], weight_NK.shape[0]), dtype=dtype)


def _reference(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    dtype = torch.promote_types(x_TK.dtype, torch.float32)
    product_TN = x_TK.to(dtype) @ weight_NK.to(dtype).T
    return product_TN if bias_N is None else product_TN + bias_N.to(dtype)


PART = 1 << 20  # elements of a weight that are float32 at a time


def _torch(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    """A CPU cannot multiply 16-bit tensors without rounding the result.

    A float32 copy of a vocabulary's weight would go to memory and back at every call (590 ms for 128,256 x
    2,048 and one row). A part of it at a time stays in the cache: 55 ms, where the rounded product takes 47.
    """
    if x_TK.dtype not in checks.HALVES:
        return linear(x_TK, weight_NK, bias_N)
    outputs, inputs = weight_NK.shape
    x_RK = x_TK.reshape(-1, inputs).float()
    y_RN = x_RK.new_empty(x_RK.shape[0], outputs)
    step = max(1, PART // max(1, inputs))
    for n in range(0, outputs, step):
        torch.mm(x_RK, weight_NK[n : n + step].float().T, out=y_RN[:, n : n + step])
    if bias_N is not None:
        y_RN += bias_N
    return y_RN.view(*x_TK.shape[:-1], outputs)


def _cublas(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    """cuBLAS hands out what it has summed in float32; a bias is added to that."""
    if x_TK.dtype not in checks.HALVES:
        return linear(x_TK, weight_NK, bias_N)
    outputs, inputs = weight_NK.shape
    y_RN = torch.mm(x_TK.reshape(-1, inputs), weight_NK.T, out_dtype=torch.float32)
    if bias_N is not None:
        y_RN += bias_N
    return y_RN.view(*x_TK.shape[:-1], outputs)


_linear_float32 = Kernel(
    "linear_float32",
    "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("cublas", _cublas),
        Implementation("torch", _torch, devices=("cpu",)),
        Implementation("triton", "fastkernels.kernels.linear_triton"),
        Implementation("gemv", "fastkernels.kernels.linear_gemv"),
    ),
    rows=lambda x_TK, *_: x_TK.numel() // x_TK.shape[-1],
)


def linear_float32(
    x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None, *, impl: str | None = None
) -> Tensor:
    """x @ weight.T + bias in float32 (float64), contiguous; x has any number of dimensions before the last,
    all tensors one dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _linear_float32(x_TK, weight_NK, bias_N, impl=impl)
