"""linear in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    product_TN = x_TK @ weight_NK.T
    return product_TN if bias_N is None else product_TN + bias_N
