"""linear_activation in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.activation.reference import ACTIVATIONS


def linear_activation(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: str) -> Tensor:
    dtype = torch.promote_types(x_TK.dtype, torch.float32)
    bias = None if bias_N is None else bias_N.to(dtype)
    return ACTIVATIONS[name](F.linear(x_TK.to(dtype), weight_NK.to(dtype), bias)).to(x_TK.dtype)
