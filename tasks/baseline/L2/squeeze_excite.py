"""Squeeze and excitation: every channel of a map times a gate that the means of all channels decide.

    y[b, y, x] = x[b, y, x] gate[b],   gate[b] = sigmoid(W2 silu(W1 mean_yx x[b, y, x] + b1) + b2)

B images, Y, X rows and columns, C channels, R reduced ones. W1 and W2 are 1 x 1 convolutions with a bias.
Rounded to the dtype of x after the mean, after each layer and after the product; where both layers are one
kernel, maybe not between them.
Mirrors timm.models._efficientnet_blocks.SqueezeExcite.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.activation import Sigmoid, SiLU
from ..L1.conv import Conv2d
from ..L1.pool import GlobalMeanPool


class SqueezeExcite(nn.Module):
    def __init__(self, in_chs: int, rd_channels: int) -> None:
        super().__init__()
        self.pool = GlobalMeanPool()
        self.conv_reduce = Conv2d(in_chs, rd_channels, 1)
        self.act1 = SiLU()
        self.conv_expand = Conv2d(rd_channels, in_chs, 1)
        self.gate = Sigmoid()
        self.fuses = Fusion(self, "conv_reduce", "act1", "conv_expand", "gate")

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, C]"""
        return x * self.gates(self.pool(x))[:, None, None, :]

    def gates(self, mean_BC: Tensor) -> Tensor:
        """Means of the channels [B, C] -> their gates [B, C]"""
        reduce, expand = self.conv_reduce, self.conv_expand
        if self.fuses and not mean_BC.is_meta:
            layers = (reduce.weight.flatten(1), reduce.bias, expand.weight.flatten(1), expand.bias)
            return kernels.squeeze_excite(mean_BC, *layers)
        gate_B11C = self.gate(expand(self.act1(reduce(mean_BC[:, None, None, :]))))
        return gate_B11C[:, 0, 0]
