"""activation in plain PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _log_sigmoid(x: Tensor) -> Tensor:
    return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "log_sigmoid": _log_sigmoid,
    "quick_gelu": _quick_gelu,
    "silu": _silu,
}


def activation(x_TF: Tensor, name: str, divisor: float) -> Tensor:
    x = x_TF.contiguous().to(torch.promote_types(x_TF.dtype, torch.float32))
    return (ACTIVATIONS[name](x) / divisor).to(x_TF.dtype)
