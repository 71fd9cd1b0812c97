"""What a block of a diffusion transformer does with a vector of modulations: a gate for each feature of a
request, and after the attention the second half of the block.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gated(x_BLD: Tensor, gate_BD: Tensor, change_BLD: Tensor) -> Tensor:
    """x + gate change, in one pass and rounded once."""
    return torch.addcmul(x_BLD, gate_BD.unsqueeze(1), change_BLD)


def continued(x: Tensor, o: Tensor, modulation: list[Tensor], norm: nn.Module, mlp: nn.Module) -> Tensor:
    """What one stream does after the attention, which gave o [B, L, D]; modulation: gate, shift', scale',
    gate' [B, D] each."""
    gate, mlp_shift, mlp_scale, mlp_gate = modulation
    a = gated(x, gate, o)
    return gated(a, mlp_gate, mlp(norm(a, mlp_scale, mlp_shift)))
