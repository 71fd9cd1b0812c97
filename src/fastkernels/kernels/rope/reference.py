"""rope in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> tuple[Tensor, Tensor]:
    compute = torch.promote_types(torch.promote_types(q_THK.dtype, cos_sin_PR.dtype), torch.float32)
    cos_sin_T1R = cos_sin_PR.index_select(0, positions_T).to(compute).unsqueeze(1)
    return _rotate(q_THK, cos_sin_T1R), _rotate(k_TJK, cos_sin_T1R)


def _rotate(x_THK: Tensor, cos_sin_T1R: Tensor) -> Tensor:
    rotated = cos_sin_T1R.shape[-1]
    cos, sin = cos_sin_T1R.chunk(2, dim=-1)
    x = x_THK.to(cos.dtype)
    first, second = x[..., :rotated].chunk(2, dim=-1)
    halves = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*halves, x[..., rotated:]), dim=-1).to(x_THK.dtype)
