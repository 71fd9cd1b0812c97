"""box_decode with the expectation as a matrix product."""

from __future__ import annotations

import torch
from torch import Tensor


def box_decode(logits_BYXS: Tensor, stride: int) -> Tensor:
    _, rows, columns, _ = logits_BYXS.shape
    dtype, device = torch.promote_types(logits_BYXS.dtype, torch.float32), logits_BYXS.device
    shares_BYX4R = logits_BYXS.unflatten(-1, (4, -1)).softmax(-1, dtype=dtype)
    distances_BYX4 = shares_BYX4R @ torch.arange(shares_BYX4R.shape[-1], dtype=dtype, device=device)
    x_X, y_Y = (torch.arange(size, dtype=dtype, device=device).add_(0.5) for size in (columns, rows))
    boxes_BYX4 = torch.empty_like(distances_BYX4)
    for side, (centre, sign) in enumerate(((x_X, -1), (y_Y[:, None], -1), (x_X, 1), (y_Y[:, None], 1))):
        torch.add(centre, distances_BYX4[..., side], alpha=sign, out=boxes_BYX4[..., side])
    return boxes_BYX4.mul_(stride).flatten(1, 2)
