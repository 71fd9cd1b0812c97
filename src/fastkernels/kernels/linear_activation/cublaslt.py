"""linear_activation by cuBLASLt: bias and activation in the epilogue of the product, which is never written.

Its GELU is the one by tanh. PyTorch reaches it by an operator of its transformer layers; where the conditions
for the epilogue do not hold, the same operator computes product and activation one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks


def unsupported(kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: str) -> str | None:
    if name != "gelu_tanh":
        return f"has an epilogue of gelu_tanh, not of {name}"
    if bias_N is None:
        return "adds a bias"
    return checks.not_half(x_TK, weight_NK, bias_N)


def linear_activation(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor, name: str) -> Tensor:
    y_TN = torch.ops.aten._addmm_activation(bias_N, x_TK.flatten(0, -2), weight_NK.t(), use_gelu=True)
    return y_TN.view(*x_TK.shape[:-1], weight_NK.shape[0])
