"""Block of a ConvNeXt V2: a large depthwise convolution, then a feed-forward block with a response norm.

    n = layer_norm(dwconv(x); eps 1e-6)
    y = x + pwconv2(grn(gelu(pwconv1(n))))

B images, Y, X rows and columns, C channels, channels last. dwconv has a filter of 7 x 7 places for each
channel, padding 3; grn goes over all pixels of an image (L1/global_response_norm); pwconv1 [4C, C], pwconv2
[C, 4C]. Rounded to the dtype of x after the norm and the sum and, where they are no one kernel, after each
step.
Mirrors transformers.models.convnextv2.modeling_convnextv2.ConvNextV2Layer.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.activation import GELU
from ..L1.conv import Conv2d
from ..L1.global_response_norm import ConvNextV2GRN
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear

PLACES, EPS, EXPANSION = 7, 1e-6, 4


class ConvNextV2Layer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = Conv2d(dim, dim, PLACES, padding=PLACES // 2, groups=dim)
        self.layernorm = LayerNorm(dim, EPS)
        self.pwconv1 = Linear(dim, EXPANSION * dim, bias=True)
        self.act = GELU()
        self.grn = ConvNextV2GRN(EXPANSION * dim)
        self.pwconv2 = Linear(EXPANSION * dim, dim, bias=True)
        self.fuses = Fusion(self, "dwconv", "layernorm", "pwconv1", "act", "grn", "pwconv2")

    def forward(self, features: Tensor) -> Tensor:
        """[B, Y, X, C] -> [B, Y, X, C]"""
        if not self.fuses or features.is_meta:
            hidden = self.act(self.pwconv1(self.layernorm(self.dwconv(features))))
            return features + self.pwconv2(self.grn(hidden))
        conv, norm = self.dwconv, self.layernorm
        normed = kernels.depthwise_norm(
            features, conv.weight, conv.bias, norm.weight, norm.bias, conv.padding, norm.eps
        )
        first, grn, second = self.pwconv1, self.grn, self.pwconv2
        layers = (first.weight, first.bias, grn.weight, grn.bias, second.weight, second.bias)
        return kernels.response_mlp(normed, *layers, features, grn.eps)
