"""glu by PyTorch's operators, in the dtype of x."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.glu.reference import ACTIVATIONS


def unsupported(kernel: str, x_T2F: Tensor, activation: str) -> str | None:
    if x_T2F.dtype not in (torch.float32, torch.float64):
        return "would round 16-bit activations before the product"
    return None


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    width = x_T2F.shape[-1] // 2
    return ACTIVATIONS[activation](x_T2F[..., :width]).mul_(x_T2F[..., width:])
