"""top_detections by torch.topk, which leaves open who of equal ones wins: so no two may be equal.

    key = ordered(x) 2^32 + (2^32 - 1 - index)          ordered: an int32 that grows as the float32 x does

Selecting K of N keys reads them a few times; a stable sort moves them all.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INDICES = (1 << 32) - 1
_MAGNITUDE = (1 << 31) - 1


def unsupported(kernel: str, boxes_BN4: Tensor, logits_BNC: Tensor, count: int) -> str | None:
    if logits_BNC.dtype.itemsize > 4:
        return "orders logits that float32 holds exactly"
    return None


def top_detections(boxes_BN4: Tensor, logits_BNC: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    classes = logits_BNC.shape[-1]
    cells_BK = _largest(logits_BNC.amax(-1), count)
    logits_BKC = logits_BNC.gather(1, cells_BK[..., None].expand(-1, -1, classes))
    chosen_BK = _largest(logits_BKC.flatten(1), count)
    cells_BK = cells_BK.gather(1, chosen_BK // classes)
    logits_BK = logits_BKC.flatten(1).gather(1, chosen_BK)
    boxes_BK4 = boxes_BN4.gather(1, cells_BK[..., None].expand(-1, -1, 4))
    return boxes_BK4, logits_BK.float().sigmoid(), chosen_BK % classes


def _largest(x_BN: Tensor, count: int) -> Tensor:
    bits_BN = x_BN.float().add(0.0).view(torch.int32)  # the sum turns -0 into 0, which it is equal to
    # Of negative numbers the magnitude's bits are turned round: the larger it is, the smaller the number.
    ordered_BN = bits_BN ^ ((bits_BN >> 31) & _MAGNITUDE)
    falling_N = _INDICES - torch.arange(x_BN.shape[-1], device=x_BN.device)
    keys_BN = (ordered_BN.long() << 32) + falling_N
    return _INDICES - (keys_BN.topk(count, dim=-1).values & _INDICES)
