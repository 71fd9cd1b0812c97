"""linear_float32 by cuBLAS, which hands out what it has summed in float32; a bias is added to that."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from fastkernels.kernels import checks


def linear_float32(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    if x_TK.dtype not in checks.HALVES:
        return linear(x_TK, weight_NK, bias_N)
    outputs, inputs = weight_NK.shape
    y_RN = torch.mm(x_TK.reshape(-1, inputs), weight_NK.T, out_dtype=torch.float32)
    if bias_N is not None:
        y_RN += bias_N
    return y_RN.view(*x_TK.shape[:-1], outputs)
