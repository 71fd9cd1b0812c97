"""layer_norm and add_layer_norm by PyTorch's operator: 16-bit rows in float32, rounded once."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x_TD, weight_D.shape, weight_D, bias_D, eps)


def add_layer_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    sum_TD = x_TD + residual_TD
    return F.layer_norm(sum_TD, weight_D.shape, weight_D, bias_D, eps), sum_TD
