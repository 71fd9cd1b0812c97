"""layer_norm and add_layer_norm in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    x = x_TD.to(dtype)
    centred = x - x.mean(-1, keepdim=True)
    scale_T1 = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (centred * scale_T1 * weight_D.to(dtype) + bias_D.to(dtype)).to(x_TD.dtype)


def add_layer_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    sum_TD = x_TD + residual_TD
    return layer_norm(sum_TD, weight_D, bias_D, eps), sum_TD
