"""Stage of a ConvNeXt V2: a step to half the resolution, then blocks.

    x = conv(layer_norm(x; eps 1e-6))          but in the first stage
    x = block_i(x) for each i

B images, Y, X rows and columns, C channels, channels last. conv has filters of 2 x 2 places, stride 2. Of an
odd map the last row or column is left out. Rounded to the dtype of x after the norm, after the convolution
and in the blocks.
Mirrors transformers.models.convnextv2.modeling_convnextv2.ConvNextV2Stage.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.conv import Conv2d
from ..L1.layer_norm import LayerNorm
from ..L2.convnext_block import EPS, ConvNextV2Layer


class ConvNextV2Stage(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int, depth: int) -> None:
        super().__init__()
        self.downsampling_layer = nn.ModuleList()
        if in_channels != out_channels or stride > 1:
            self.downsampling_layer.append(LayerNorm(in_channels, EPS))
            self.downsampling_layer.append(Conv2d(in_channels, out_channels, stride, stride))
        self.layers = nn.ModuleList(ConvNextV2Layer(out_channels) for _ in range(depth))

    def forward(self, features: Tensor) -> Tensor:
        """[B, Y, X, C] -> [B, Y // stride, X // stride, out_channels]"""
        for layer in (*self.downsampling_layer, *self.layers):
            features = layer(features)
        return features
