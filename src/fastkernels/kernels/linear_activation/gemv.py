"""linear_activation in Triton for one row: the kernel of linear/gemv.py, the activation of its sums in
float32.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels import gemv
from fastkernels.kernels.activation import Name
from fastkernels.kernels.linear.gemv import launch


def unsupported(kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: str) -> str | None:
    return gemv.unsupported(x_TK, weight_NK, bias_N)


def linear_activation(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: Name) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, gemv.tile_of(weight_NK.shape[1]), activation=name)
