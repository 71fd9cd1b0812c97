"""Activation of every element, divided by a constant.

    y = act(x) / divisor

    gelu(x) = x/2 (1 + erf(x / sqrt 2))      gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    log_sigmoid(x) = log(1 / (1 + exp(-x)))  silu(x) = x / (1 + exp(-x))
    quick_gelu(x) = x / (1 + exp(-1.702 x))   sigmoid(x) = 1 / (1 + exp(-x))        relu(x) = max(x, 0)
    relu2(x) = max(x, 0)^2                    tanh(x) = 2 / (1 + exp(-2x)) - 1
    mish(x) = x tanh(log(1 + exp(x))) = x n / (n + 2),  n = u (u + 2),  u = exp(x)

T tokens · F features. In float32 (float64 stays float64), rounded once to the dtype of x. The log-sigmoid is
never positive, and accurate where it is close to zero; with its divisor it is the log-space gate of linear
attention.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS

Name = Literal[
    "gelu", "gelu_tanh", "log_sigmoid", "mish", "quick_gelu", "relu", "relu2", "sigmoid", "silu", "tanh"
]


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _log_sigmoid(x: Tensor) -> Tensor:
    return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))


def mish(x: Tensor) -> Tensor:
    u = torch.exp(x.clamp(max=20))  # from there on tanh is 1 in float64
    n = u * (u + 2)
    return x * (n / (n + 2))


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "log_sigmoid": _log_sigmoid,
    "mish": mish,
    "quick_gelu": _quick_gelu,
    "relu": torch.relu,
    "relu2": _relu2,
    "sigmoid": torch.sigmoid,
    "silu": _silu,
    "tanh": torch.tanh,
}


def _reference(x_TF: Tensor, name: str, divisor: float) -> Tensor:
    x = x_TF.contiguous().to(torch.promote_types(x_TF.dtype, torch.float32))
    return (ACTIVATIONS[name](x) / divisor).to(x_TF.dtype)


def _wide_quick_gelu(x: Tensor) -> Tensor:
    """PyTorch has no operator for it, so 16-bit elements are widened here."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.sigmoid(1.702 * wide).mul_(wide).to(x.dtype)


_OPERATORS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "log_sigmoid": F.logsigmoid,
    "mish": F.mish,
    "quick_gelu": _wide_quick_gelu,
    "relu": F.relu,
    "relu2": _relu2,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def _torch(x_TF: Tensor, name: str, divisor: float) -> Tensor:
    """16-bit elements are computed in float32 and rounded: before and after the division, where there is
    one."""
    y_TF = _OPERATORS[name](x_TF.contiguous())
    return y_TF if divisor == 1 else y_TF.div_(divisor)


_activation = Kernel(
    "activation",
    "(Tensor x, str name, float divisor) -> Tensor",
    _reference,
    fake=lambda x_TF, name, divisor: x_TF.new_empty(x_TF.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
        Implementation("liger", f"{PROVIDERS}.liger", requires=("liger_kernel",), extra="liger"),
    ),
    rows=lambda x_TF, *_: x_TF.numel() // x_TF.shape[-1],
)


def activation(x_TF: Tensor, name: Name, divisor: float = 1.0, *, impl: str | None = None) -> Tensor:
    """The activation of each element over `divisor`, contiguous, in x's shape and dtype.

    x may be a strided view. Raises KernelError when `impl` cannot serve the call, ValueError for another
    activation.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{name}'; there are {', '.join(ACTIVATIONS)}")
    return _activation(x_TF, name, divisor, impl=impl)
