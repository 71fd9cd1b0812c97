"""linear_activation in Triton for 1 to 32 rows: the kernel of linear/triton.py, the activation of its sums in
float32.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels import skinny
from fastkernels.kernels.activation import Name
from fastkernels.kernels.linear.triton import launch


def unsupported(kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: str) -> str | None:
    return skinny.unsupported(x_TK, weight_NK, bias_N)


def linear_activation(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: Name) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, skinny.tile_for(x_TK, weight_NK), activation=name)
