"""box_decode in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def box_decode(logits_BYXS: Tensor, stride: int) -> Tensor:
    _, rows, columns, _ = logits_BYXS.shape
    dtype, device = torch.promote_types(logits_BYXS.dtype, torch.float32), logits_BYXS.device
    shares_BYX4R = logits_BYXS.to(dtype).unflatten(-1, (4, -1)).softmax(-1)
    bins_R = torch.arange(shares_BYX4R.shape[-1], dtype=dtype, device=device)
    distances_BYX4 = (shares_BYX4R * bins_R).sum(-1)
    y_YX, x_YX = torch.meshgrid(
        torch.arange(rows, dtype=dtype, device=device) + 0.5,
        torch.arange(columns, dtype=dtype, device=device) + 0.5,
        indexing="ij",
    )
    centre_YX2 = torch.stack((x_YX, y_YX), -1)
    low, high = centre_YX2 - distances_BYX4[..., :2], centre_YX2 + distances_BYX4[..., 2:]
    return (torch.cat((low, high), -1) * stride).flatten(1, 2)
