"""group_norm in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


ACTIVATIONS = {"silu": _silu, "none": lambda x: x}


def group_norm(
    x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, groups: int, eps: float, activation: str
) -> Tensor:
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    x_BGYXS = x_BYXC.to(dtype).unflatten(-1, (groups, -1)).permute(0, 3, 1, 2, 4)
    # One group behind the other: PyTorch adds up a contiguous run in pairs, and strided values one by one.
    x_BGM = x_BGYXS.flatten(2)
    centred = x_BGM - x_BGM.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    n_BYXC = normed.view(x_BGYXS.shape).permute(0, 2, 3, 1, 4).flatten(-2)
    n_BYXC = n_BYXC * weight_C.to(dtype) + bias_C.to(dtype)
    return ACTIVATIONS[activation](n_BYXC).to(x_BYXC.dtype).contiguous()
