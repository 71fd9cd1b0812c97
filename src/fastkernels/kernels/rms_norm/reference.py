"""rms_norm and add_rms_norm in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    x = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    scale_T1 = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * scale_T1).to(x_TD.dtype) * weight_D


def add_rms_norm(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    sum_TD = x_TD + residual_TD
    return rms_norm(sum_TD, weight_D, eps), sum_TD
