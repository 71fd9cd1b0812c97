"""linear_float32 in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_float32(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    dtype = torch.promote_types(x_TK.dtype, torch.float32)
    product_TN = x_TK.to(dtype) @ weight_NK.to(dtype).T
    return product_TN if bias_N is None else product_TN + bias_N.to(dtype)
