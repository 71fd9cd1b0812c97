"""A bias for each channel and an activation: what follows a convolution whose norm is folded into it.

    y[t, c] = act(x[t, c] + bias[c])     silu(x) = x / (1 + exp(-x))     relu(x) = max(x, 0)     none(x) = x

T tokens or pixels · C channels. In float32 (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

Name = Literal["silu", "relu", "none"]


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


ACTIVATIONS = {"silu": _silu, "relu": torch.relu, "none": lambda x: x}
_IN_PLACE = {"silu": lambda x: F.silu(x, inplace=True), "relu": torch.relu_, "none": lambda x: x}


def _reference(x_TC: Tensor, bias_C: Tensor, name: str) -> Tensor:
    dtype = torch.promote_types(x_TC.dtype, torch.float32)
    return ACTIVATIONS[name](x_TC.contiguous().to(dtype) + bias_C.to(dtype)).to(x_TC.dtype)


def _torch(x_TC: Tensor, bias_C: Tensor, name: str) -> Tensor:
    """The sum is rounded to the dtype of x before the activation."""
    return _IN_PLACE[name](x_TC.contiguous() + bias_C)


_bias_activation = Kernel(
    "bias_activation",
    "(Tensor x, Tensor bias, str name) -> Tensor",
    _reference,
    fake=lambda x_TC, bias_C, name: x_TC.new_empty(x_TC.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda x_TC, *_: x_TC.numel() // x_TC.shape[-1],
)


def bias_activation(x_TC: Tensor, bias_C: Tensor, name: Name, *, impl: str | None = None) -> Tensor:
    """The activation of x + bias, contiguous, in x's shape and dtype; x may be a strided view.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{name}'; there are {', '.join(ACTIVATIONS)}")
    return _bias_activation(x_TC, bias_C, name, impl=impl)
