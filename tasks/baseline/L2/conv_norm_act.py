"""Convolution, batch norm and activation, the norm folded into filters and a bias.

    y = act(conv(x, w) + b)          w = w0 g / sqrt(var + eps),  b = beta - mean g / sqrt(var + eps)

B images, Y, X rows and columns, C channels, O filters; a map keeps its extent at stride 1. Folding is the
loader's (fastkernels.nn.folding): w and b are what this module has. The convolution is rounded to the dtype
of x, the sum and its activation once more.
Mirrors ultralytics.nn.modules.conv.Conv after fusing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fastkernels import kernels

from ..L1.conv import Conv2d


class ConvNormAct(nn.Module):
    def __init__(
        self,
        c1: int,
        c2: int,
        k: int = 1,
        s: int = 1,
        g: int = 1,
        activation: str = "silu",
    ) -> None:
        """c1 and c2 channels, filters of k x k places, stride s, g groups."""
        super().__init__()
        if activation not in ("silu", "none"):
            raise ValueError(f"activation must be 'silu' or 'none', not {activation!r}")
        self.activation: Literal["silu", "none"] = "silu" if activation == "silu" else "none"
        padding = k // 2
        self.conv = Conv2d(c1, c2, k, s, padding, g, bias=False)
        self.bias = nn.Parameter(torch.empty(c2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y', X', O], Y' = ceil(Y / stride)"""
        return kernels.bias_activation(self.conv(x), self.bias, self.activation)
