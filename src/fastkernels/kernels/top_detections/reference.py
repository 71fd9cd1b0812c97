"""top_detections in plain PyTorch: two stable sorts."""

from __future__ import annotations

import torch
from torch import Tensor


def top_detections(boxes_BN4: Tensor, logits_BNC: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    classes = logits_BNC.shape[-1]
    cells_BK = _largest(logits_BNC.amax(-1), count)
    logits_BKC = logits_BNC.gather(1, cells_BK[..., None].expand(-1, -1, classes))
    chosen_BK = _largest(logits_BKC.flatten(1), count)
    cells_BK = cells_BK.gather(1, chosen_BK // classes)
    logits_BK = logits_BKC.flatten(1).gather(1, chosen_BK)
    wide_BK = logits_BK.to(torch.promote_types(logits_BK.dtype, torch.float32))
    boxes_BK4 = boxes_BN4.gather(1, cells_BK[..., None].expand(-1, -1, 4))
    return boxes_BK4, 1 / (1 + torch.exp(-wide_BK)), chosen_BK % classes


def _largest(x_BN: Tensor, count: int) -> Tensor:
    """Where the largest lie, falling; equal ones in their order."""
    return x_BN.sort(dim=-1, descending=True, stable=True).indices[:, :count]
