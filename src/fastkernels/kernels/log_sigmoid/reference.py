"""log_sigmoid in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def log_sigmoid(x_TD: Tensor, divisor: float) -> Tensor:
    x = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32)).contiguous()
    return ((x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))) / divisor).to(x_TD.dtype)
