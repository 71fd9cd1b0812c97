"""sinusoidal in plain PyTorch."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


def sinusoidal(v_B: Tensor, dim: int, period: float) -> Tensor:
    angle_BJ = v_B[:, None] * frequencies(dim, period, v_B.device)
    return torch.cat((angle_BJ.cos(), angle_BJ.sin()), dim=-1).to(v_B.dtype)


@lru_cache
def frequencies(dim: int, period: float, device: torch.device) -> Tensor:
    """float64 [D/2]; one for all calls, so that a graph is captured with the copy that is there."""
    exponents = torch.arange(dim // 2, dtype=torch.float64, device="cpu") * (-2 * math.log(period) / dim)
    return exponents.exp().to(device)
