"""moe_sum by PyTorch's reduction, which accumulates 16-bit values in float32."""

from __future__ import annotations

from torch import Tensor


def moe_sum(x_TKD: Tensor) -> Tensor:
    return x_TKD.sum(1)
