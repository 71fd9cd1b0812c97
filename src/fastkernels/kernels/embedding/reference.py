"""embedding in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def embedding(ids_T: Tensor, weight_VD: Tensor) -> Tensor:
    return weight_VD[ids_T]
