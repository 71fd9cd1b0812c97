"""activation by PyTorch's operators, which compute 16-bit elements in float32 and round once."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

_APPROXIMATE = {"gelu": "none", "gelu_tanh": "tanh"}


def activation(x_TF: Tensor, name: str) -> Tensor:
    return F.gelu(x_TF.contiguous(), approximate=_APPROXIMATE[name])
