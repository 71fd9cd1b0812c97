"""modulated_layer_norm in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def modulated_layer_norm(x_BLD: Tensor, scale_BD: Tensor, shift_BD: Tensor, eps: float) -> Tensor:
    dtype = torch.promote_types(x_BLD.dtype, torch.float32)
    x = x_BLD.contiguous().to(dtype)
    centred = x - x.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    scale_B1D, shift_B1D = scale_BD.to(dtype).unsqueeze(1), shift_BD.to(dtype).unsqueeze(1)
    return (normed * (1 + scale_B1D) + shift_B1D).to(x_BLD.dtype)
