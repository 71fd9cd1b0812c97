"""gated_rms_norm in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_rms_norm(x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    x, gate = x_TD.to(wide), gate_TD.to(wide)
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (normal * weight_D.to(wide) * gate * torch.sigmoid(gate)).to(x_TD.dtype).contiguous()
