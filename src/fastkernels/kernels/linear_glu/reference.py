"""linear_glu in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.glu.reference import ACTIVATIONS


def linear_glu(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str) -> Tensor:
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    bias = None if bias_2F is None else bias_2F.to(dtype)
    gate_TF, up_TF = F.linear(x_TD.to(dtype), weight_2FD.to(dtype), bias).chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate_TF) * up_TF).to(x_TD.dtype)
