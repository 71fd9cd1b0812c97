"""glu by PyTorch's operators in the dtype of x: the activation is rounded before the product (both at once in float32)."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.glu.reference import ACTIVATIONS


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    width = x_T2F.shape[-1] // 2
    return ACTIVATIONS[activation](x_T2F[..., :width]).mul_(x_T2F[..., width:])
