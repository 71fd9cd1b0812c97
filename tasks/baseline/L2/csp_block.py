"""Blocks of a cross-stage partial network: a part of the channels goes through layers, and all meet again.

    C2f       y = conv(concat(a, b, m_1(b), m_2(m_1(b)), ...)),  (a, b) = halves of conv(x)
    SCDown    y = dw(conv(x))
    CSPRep    y = r_n(.. r_1(conv1(x))) + conv2(x)
    SPPF      y = conv(concat(h, pool(h), pool(pool(h)), pool(pool(pool(h))))),  h = conv(x)

B images, Y, X rows and columns, C channels (c1), O outputs (c2). conv are 1 x 1 with SiLU, dw is depthwise
3 x 3 with stride 2 and no activation, pool is 5 x 5. A Bottleneck is two 3 x 3 convolutions. A CIB is
depthwise 3 x 3, 1 x 1 to twice the channels, depthwise 7 x 7, 1 x 1 back, depthwise 3 x 3; the 7 x 7
filters hold a parallel 3 x 3 convolution too. Both may add their input. r is 3 x 3, and its filters hold a
parallel 1 x 1 convolution (RepVGG). All but dw with SiLU, norms folded.
Rounded to the dtype of x after each convolution, its activation and each sum.
Mirrors ultralytics.nn.modules.block.Bottleneck, C2f, CIB, C2fCIB, SCDown and SPPF after fusing, and
transformers.models.rt_detr_v2.modeling_rt_detr_v2.RTDetrV2CSPRepLayer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion

from ..L1.pool import MaxPool2d
from .conv_norm_act import ConvNormAct, fused


class Bottleneck(nn.Module):
    def __init__(self, c1: int, shortcut: bool) -> None:
        super().__init__()
        self.shortcut = shortcut
        self.cv1 = ConvNormAct(c1, c1, 3)
        self.cv2 = ConvNormAct(c1, c1, 3)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, C]"""
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class CIB(nn.Module):
    def __init__(self, c1: int, shortcut: bool) -> None:
        super().__init__()
        self.shortcut = shortcut
        wide = 2 * c1
        self.cv1 = nn.Sequential(
            ConvNormAct(c1, c1, 3, g=c1),
            ConvNormAct(c1, wide),
            ConvNormAct(wide, wide, 7, g=wide),
            ConvNormAct(wide, c1),
            ConvNormAct(c1, c1, 3, g=c1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, C]"""
        y = self.cv1(x)
        return x + y if self.shortcut else y


class C2f(nn.Module):
    def __init__(self, c1: int, c2: int, n: int, shortcut: bool, inverted: bool = False) -> None:
        """n layers; inverted: they are CIBs."""
        super().__init__()
        half = c2 // 2
        layer = CIB if inverted else Bottleneck
        self.cv1 = ConvNormAct(c1, 2 * half)
        self.cv2 = ConvNormAct((2 + n) * half, c2)
        self.m = nn.ModuleList(layer(half, shortcut) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, O]"""
        halves = self.cv1(x)
        parts = [halves]
        last = halves.chunk(2, dim=-1)[1].contiguous()
        for layer in self.m:
            last = layer(last)
            parts.append(last)
        return self.cv2(torch.cat(parts, dim=-1))


class SCDown(nn.Module):
    def __init__(self, c1: int, c2: int) -> None:
        super().__init__()
        self.cv1 = ConvNormAct(c1, c2)
        self.cv2 = ConvNormAct(c2, c2, 3, 2, g=c2, activation="none")

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, ceil(Y / 2), ceil(X / 2), O]"""
        return self.cv2(self.cv1(x))


class SPPF(nn.Module):
    def __init__(self, c1: int, c2: int) -> None:
        super().__init__()
        hidden = c1 // 2
        self.cv1 = ConvNormAct(c1, hidden)
        self.cv2 = ConvNormAct(4 * hidden, c2)
        self.pool = MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, O]"""
        parts = [self.cv1(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.cv2(torch.cat(parts, dim=-1))


class CSPRepLayer(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, num_blocks: int = 3) -> None:
        super().__init__()
        self.conv1 = ConvNormAct(in_channels, out_channels)
        self.conv2 = ConvNormAct(in_channels, out_channels)
        self.bottlenecks = nn.Sequential(
            *(ConvNormAct(out_channels, out_channels, 3) for _ in range(num_blocks))
        )
        self.fuses = Fusion(self, "conv2")

    def forward(self, hidden_state: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, O]"""
        deep_BYXO = self.bottlenecks(self.conv1(hidden_state))
        if self.fuses and not hidden_state.is_meta:
            return fused(self.conv2, hidden_state, deep_BYXO)
        return deep_BYXO + self.conv2(hidden_state)
