"""softmax in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax(x_TD: Tensor) -> Tensor:
    x = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    weight = torch.exp(x - x.amax(-1, keepdim=True))
    return (weight / weight.sum(-1, keepdim=True)).to(x_TD.dtype)
