"""bias_activation in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


ACTIVATIONS = {"silu": _silu, "none": lambda x: x}


def bias_activation(x_TC: Tensor, bias_C: Tensor, name: str) -> Tensor:
    dtype = torch.promote_types(x_TC.dtype, torch.float32)
    return ACTIVATIONS[name](x_TC.contiguous().to(dtype) + bias_C.to(dtype)).to(x_TC.dtype)
