"""linear_activation as two kernels, each the choice for this device; the product is rounded between them."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.activation import Name, activation
from fastkernels.kernels.linear import linear


def linear_activation(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: Name) -> Tensor:
    return activation(linear(x_TK, weight_NK, bias_N), name)
