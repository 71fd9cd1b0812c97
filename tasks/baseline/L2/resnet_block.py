"""Residual blocks of a convolutional decoder, a U-Net and a ResNet, and the step to twice the resolution.

    default     y = s(x) + conv2(silu(group_norm2(conv1(silu(group_norm1(x))))))
    timed       y = s(x) + conv2(silu(group_norm2(conv1(silu(group_norm1(x))) + silu(t) W^T + b)))
    upsample    y[r, c] = conv(u)[r, c],  u[r, c] = x[r // 2, c // 2]
    bottleneck  y = relu(p(x) + widen(relu(conv(relu(narrow(x))))))

B images, Y, X rows and columns, C input and O output channels, t D features of an image's timestep. All
convolutions are 3 x 3 with padding and bias; s is x itself, or a 1 x 1 convolution with bias where O is not
C. Of a bottleneck narrow (to O / 4 channels) and widen are 1 x 1, conv is 3 x 3 with the stride, norms
folded; p is x itself, or, of another width or stride, the mean of 2 x 2 places at stride 2 and a 1 x 1
convolution. Rounded to the dtype of x after each activation, product, convolution and sum.
Mirrors diffusers.models.resnet.ResnetBlock2D without a time embedding and, timed, with one,
diffusers.models.upsampling.Upsample2D with a convolution, and
transformers.models.rt_detr.modeling_rt_detr_resnet.RTDetrResNetBottleNeckLayer.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.activation import ReLU, SiLU
from ..L1.conv import Conv2d
from ..L1.group_norm import GroupNorm
from ..L1.image_ops import Upsample
from ..L1.linear import Linear
from ..L1.pool import AvgPool2d
from .conv_norm_act import ConvNormAct

REDUCTION = 4  # of the channels in a bottleneck


class ResnetBlock2D(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, groups: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm1 = GroupNorm(groups, in_channels, eps, "silu")
        self.conv1 = Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = GroupNorm(groups, out_channels, eps, "silu")
        self.conv2 = Conv2d(out_channels, out_channels, 3, padding=1)
        self.conv_shortcut = Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, input_tensor: Tensor) -> Tensor:
        """input_tensor [B, Y, X, C] -> [B, Y, X, O]"""
        h = self.conv2(self.norm2(self.conv1(self.norm1(input_tensor))))
        return h + (input_tensor if self.conv_shortcut is None else self.conv_shortcut(input_tensor))


class TimedResnetBlock2D(ResnetBlock2D):
    def __init__(
        self, in_channels: int, out_channels: int, temb_channels: int, groups: int, eps: float = 1e-5
    ) -> None:
        super().__init__(in_channels, out_channels, groups, eps)
        self.nonlinearity = SiLU()
        self.time_emb_proj = Linear(temb_channels, out_channels, bias=True)

    def forward(self, input_tensor: Tensor, temb: Tensor) -> Tensor:
        """input_tensor [B, Y, X, C], temb [B, D] -> [B, Y, X, O]"""
        time_BO = self.time_emb_proj(self.nonlinearity(temb))
        h = self.conv1(self.norm1(input_tensor)) + time_BO[:, None, None]
        h = self.conv2(self.norm2(h))
        return h + (input_tensor if self.conv_shortcut is None else self.conv_shortcut(input_tensor))


class Upsample2D(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.upsample = Upsample()
        self.conv = Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [B, Y, X, C] -> [B, 2 Y, 2 X, C]"""
        return self.conv(self.upsample(hidden_states))


class BottleNeckLayer(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        inner = out_channels // REDUCTION
        self.pooler = AvgPool2d(2, 2, ceil_mode=True) if stride == 2 else None
        is_same = in_channels == out_channels and stride == 1
        self.shortcut = None if is_same else ConvNormAct(in_channels, out_channels, activation="none")
        self.narrow = ConvNormAct(in_channels, inner, activation="relu")
        self.conv = ConvNormAct(inner, inner, 3, stride, activation="relu")
        self.widen = ConvNormAct(inner, out_channels, activation="none")
        self.activation = ReLU()

    def forward(self, hidden_state: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, ceil(Y / stride), ceil(X / stride), O]"""
        deep_BYXO = self.widen(self.conv(self.narrow(hidden_state)))
        if self.pooler is not None:
            hidden_state = self.pooler(hidden_state)
        residual_BYXO = hidden_state if self.shortcut is None else self.shortcut(hidden_state)
        return self.activation(deep_BYXO + residual_BYXO)
