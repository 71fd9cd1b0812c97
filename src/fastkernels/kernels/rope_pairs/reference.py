"""rope_pairs in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_pairs(q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> tuple[Tensor, Tensor]:
    compute = torch.promote_types(torch.promote_types(q_BSHK.dtype, cos_sin_SK.dtype), torch.float32)
    cos_S1J, sin_S1J = cos_sin_SK.to(compute).unsqueeze(1).chunk(2, dim=-1)
    return _rotate(q_BSHK, cos_S1J, sin_S1J), _rotate(k_BSHK, cos_S1J, sin_S1J)


def _rotate(x_BSHK: Tensor, cos_S1J: Tensor, sin_S1J: Tensor) -> Tensor:
    even, odd = x_BSHK.contiguous().to(cos_S1J.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    pairs = (even * cos_S1J - odd * sin_S1J, odd * cos_S1J + even * sin_S1J)
    return torch.stack(pairs, dim=-1).flatten(-2).to(x_BSHK.dtype)
