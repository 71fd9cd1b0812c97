"""Patches of an image as pixels of a feature map: a convolution that reads each pixel once, and a norm.

    y = layer_norm(conv(x))          filters of P x P places, stride P

B images, Y, X rows and columns, I input channels, D hidden, channels last. Pixels beyond the last whole patch
are left out. Rounded to the dtype of x after the convolution and after the norm.
Mirrors transformers.models.convnextv2.modeling_convnextv2.ConvNextV2Embeddings (timm: layers.PatchEmbed with
a norm).
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.conv import Conv2d
from ..L1.layer_norm import LayerNorm


class ConvEmbed(nn.Module):
    def __init__(self, num_channels: int, hidden_size: int, patch_size: int, layer_norm_eps: float) -> None:
        super().__init__()
        self.patch_embeddings = Conv2d(num_channels, hidden_size, patch_size, patch_size)
        self.layernorm = LayerNorm(hidden_size, layer_norm_eps)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, Y, X, I] -> [B, Y // P, X // P, D]"""
        return self.layernorm(self.patch_embeddings(pixel_values))
