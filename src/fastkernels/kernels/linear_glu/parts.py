"""linear_glu as two kernels, each the choice for this device; the products are rounded between them."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.glu import Activation, glu
from fastkernels.kernels.linear import linear


def linear_glu(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: Activation) -> Tensor:
    return glu(linear(x_TD, weight_2FD, bias_2F), activation)
