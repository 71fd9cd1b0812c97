"""glu by PyTorch's operators, in the dtype of x: 16-bit activations are rounded before the product too."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.glu.reference import ACTIVATIONS


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    width = x_T2F.shape[-1] // 2
    return ACTIVATIONS[activation](x_T2F[..., :width]).mul_(x_T2F[..., width:])
