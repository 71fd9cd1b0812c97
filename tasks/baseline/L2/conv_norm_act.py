"""Convolution, batch norm and activation, the norm folded into filters and a bias.

    y = act(conv(x, w) + b)          w = w0 g / sqrt(var + eps),  b = beta - mean g / sqrt(var + eps)

B images, Y, X rows and columns, C channels, O filters; a map keeps its extent at stride 1. activation: silu,
relu, none. Folding is the loader's (fastkernels.nn.folding): w and b are what this module has. Rounded to the
dtype of x after the activation and, where conv and what follows are not one kernel, after the convolution.
Mirrors ultralytics.nn.modules.conv.Conv and timm.layers.conv_bn_act.ConvNormAct after fusing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.conv import Conv2d

ACTIVATIONS = ("silu", "relu", "none")


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
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
        self.activation = activation
        padding = k // 2
        self.conv = Conv2d(c1, c2, k, s, padding, g, bias=False)
        self.bias = nn.Parameter(torch.empty(c2), requires_grad=False)
        self.fuses = Fusion(self, "conv")

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y', X', O], Y' = ceil(Y / stride)"""
        if self.fuses and not x.is_meta:
            return fused(self, x)
        return kernels.bias_activation(self.conv(x), self.bias, self.activation)


def fused(part: ConvNormAct, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """The part of x as one kernel, plus the residual where there is one."""
    conv = part.conv
    how: Any = (conv.stride, conv.padding, conv.groups, part.activation)
    return kernels.conv2d_activation(x, conv.weight, part.bias, *how, residual_BYXO=residual)
