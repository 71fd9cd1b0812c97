"""rope_pairs as PyTorch's product of complex numbers: a pair is one number, its turn another."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks


def unsupported(kernel: str, q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> str | None:
    if q_BSHK.dtype not in (torch.float32, torch.float64):
        return "has no complex numbers of 16-bit parts"
    return checks.not_alike(q_BSHK, k_BSHK, cos_sin_SK)


def rope_pairs(q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> tuple[Tensor, Tensor]:
    turn_S1J = torch.complex(*cos_sin_SK.unsqueeze(1).chunk(2, dim=-1))
    return _rotate(q_BSHK, turn_S1J), _rotate(k_BSHK, turn_S1J)


def _rotate(x_BSHK: Tensor, turn_S1J: Tensor) -> Tensor:
    pairs_BSHJ = torch.view_as_complex(x_BSHK.contiguous().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs_BSHJ * turn_S1J).flatten(-2)
