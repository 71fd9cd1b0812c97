"""glu in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    gate_TF, up_TF = x_T2F.to(torch.promote_types(x_T2F.dtype, torch.float32)).chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate_TF) * up_TF).to(x_T2F.dtype)
