"""A linear layer and the activation of its output: the first half of a feed-forward block.

    y = act(x W^T + b)        activations and their names as in kernels/activation

T tokens · K inputs · N outputs. W is [N, K], as checkpoints store it. Accumulates in at least float32, rounds
to the dtype of x after the activation; an implementation may round the product, too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activation import ACTIVATIONS, Name, activation
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.linear import linear


def _reference(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: str) -> Tensor:
    dtype = torch.promote_types(x_TK.dtype, torch.float32)
    bias = None if bias_N is None else bias_N.to(dtype)
    return ACTIVATIONS[name](F.linear(x_TK.to(dtype), weight_NK.to(dtype), bias)).to(x_TK.dtype)


def _parts(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: Name) -> Tensor:
    """Two kernels, each the choice for this device; the product is rounded between them."""
    return activation(linear(x_TK, weight_NK, bias_N), name)


def _cublaslt_unsupported(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: str) -> str | None:
    if name not in ("gelu_tanh", "relu"):
        return f"has epilogues of gelu_tanh and relu, not of {name}"
    if bias_N is None:
        return "adds a bias"
    if name == "relu":
        return checks.not_float32_compute(x_TK, weight_NK, bias_N)
    return checks.not_half(x_TK, weight_NK, bias_N)


def _cublaslt(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor, name: str) -> Tensor:
    """Bias and activation in the epilogue of the product, which is never written.

    Its GELU is the one by tanh, its other activation relu. PyTorch reaches it by an operator of its
    transformer layers; where the conditions for the epilogue do not hold, the same operator computes product
    and activation one after the other.
    """
    is_gelu = name == "gelu_tanh"
    y_TN = torch.ops.aten._addmm_activation(bias_N, x_TK.flatten(0, -2), weight_NK.t(), use_gelu=is_gelu)
    return y_TN.view(*x_TK.shape[:-1], weight_NK.shape[0])


_linear_activation = Kernel(
    "linear_activation",
    "(Tensor x, Tensor weight, Tensor? bias, str name) -> Tensor",
    _reference,
    fake=lambda x_TK, weight_NK, bias_N, name: x_TK.new_empty((*x_TK.shape[:-1], weight_NK.shape[0])),
    implementations=(
        Implementation("cublaslt", _cublaslt, unsupported=_cublaslt_unsupported),
        Implementation("parts", _parts, devices=("cpu", "cuda")),
        Implementation("triton", "fastkernels.kernels.linear_triton"),
        Implementation("gemv", "fastkernels.kernels.linear_gemv"),
        Implementation("tf32x3", "fastkernels.kernels.linear_tf32x3"),
    ),
    rows=lambda x_TK, *_: x_TK.numel() // x_TK.shape[-1],
)


def linear_activation(
    x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: Name, *, impl: str | None = None
) -> Tensor:
    """act(x @ weight.T + bias), contiguous; x has any number of dimensions before the last, all tensors one
    dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{name}'; there are {', '.join(ACTIVATIONS)}")
    return _linear_activation(x_TK, weight_NK, bias_N, name, impl=impl)
