"""The weights of one axis."""

from __future__ import annotations

import torch
from torch import Tensor


def weights(place_T: Tensor, size: Tensor | int, length: int, dtype: torch.dtype) -> Tensor:
    """[T, length]: what each entry of an axis of the table adds to a token at `place_T`.

    size: of the token's image along this axis, one for all or [T, 1].
    """
    scale = length / size
    centre_T1 = scale * (place_T.to(dtype) + 0.5)[:, None]
    entry_M = torch.arange(length, dtype=dtype, device=place_T.device) + 0.5
    reach = scale.clamp(min=1) if isinstance(scale, Tensor) else max(scale, 1)
    kernel_TM = (1 - (entry_M - centre_T1).abs() / reach).clamp(min=0)
    return kernel_TM / kernel_TM.sum(-1, keepdim=True)
