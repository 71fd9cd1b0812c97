"""YOLOv10-N in float64, channels second, norms as they stand: what the parity tests hold the model against.

Tensors are a checkpoint's, by its names. No code is shared with the model: convolutions are PyTorch's
float64 operator, batch norm is applied where it stands, attention is written out, and the choice of boxes
is a sort in Python.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-3
Weights = dict[str, Tensor]


class Equations:
    def __init__(self, weights: Weights, num_classes: int, prefix: str = "model.model") -> None:
        self.w = {name.removeprefix(f"{prefix}."): tensor.double() for name, tensor in weights.items()}
        self.num_classes = num_classes

    # ---- layers, each by the checkpoint's name

    def conv(
        self, x: Tensor, name: str, stride: int = 1, depthwise: bool = False, act: bool = True
    ) -> Tensor:
        """Convolution, batch norm as it stands, SiLU."""
        weight = self.w[f"{name}.conv.weight"]
        groups = x.shape[1] if depthwise else 1
        y = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2, 1, groups)
        gain, shift, mean, variance = (
            self.w[f"{name}.bn.{part}"].view(1, -1, 1, 1)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        y = (y - mean) / torch.sqrt(variance + EPS) * gain + shift
        return y * torch.sigmoid(y) if act else y

    def bottleneck(self, x: Tensor, name: str, shortcut: bool) -> Tensor:
        y = self.conv(self.conv(x, f"{name}.cv1"), f"{name}.cv2")
        return x + y if shortcut else y

    def cib(self, x: Tensor, name: str) -> Tensor:
        y = self.conv(x, f"{name}.cv1.0", depthwise=True)
        y = self.conv(y, f"{name}.cv1.1")
        both = self.conv(y, f"{name}.cv1.2.conv", depthwise=True, act=False)
        both = both + self.conv(y, f"{name}.cv1.2.conv1", depthwise=True, act=False)
        y = self.conv(both * torch.sigmoid(both), f"{name}.cv1.3")
        return x + self.conv(y, f"{name}.cv1.4", depthwise=True)

    def c2f(self, x: Tensor, name: str, depth: int, shortcut: bool, inverted: bool = False) -> Tensor:
        y = self.conv(x, f"{name}.cv1")
        half = y.shape[1] // 2
        parts = [y[:, :half], y[:, half:]]
        for i in range(depth):
            layer = f"{name}.m.{i}"
            last = parts[-1]
            parts.append(self.cib(last, layer) if inverted else self.bottleneck(last, layer, shortcut))
        return self.conv(torch.cat(parts, 1), f"{name}.cv2")

    def scdown(self, x: Tensor, name: str) -> Tensor:
        return self.conv(self.conv(x, f"{name}.cv1"), f"{name}.cv2", stride=2, depthwise=True, act=False)

    def sppf(self, x: Tensor, name: str) -> Tensor:
        parts = [self.conv(x, f"{name}.cv1")]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.conv(torch.cat(parts, 1), f"{name}.cv2")

    def attention(self, x: Tensor, name: str) -> Tensor:
        batch, channels, rows, columns = x.shape
        heads = channels // 64
        qkv = self.conv(x, f"{name}.qkv", act=False).reshape(batch, heads, 128, rows * columns)
        q, k, v = qkv[:, :, :32], qkv[:, :, 32:64], qkv[:, :, 64:]
        scores = q.transpose(2, 3) @ k / math.sqrt(32)
        o = (v @ scores.softmax(-1).transpose(2, 3)).reshape(x.shape)
        pe = self.conv(v.reshape(x.shape), f"{name}.pe", depthwise=True, act=False)
        return self.conv(o + pe, f"{name}.proj", act=False)

    def psa(self, x: Tensor, name: str) -> Tensor:
        y = self.conv(x, f"{name}.cv1")
        half = y.shape[1] // 2
        a, b = y[:, :half], y[:, half:]
        b = b + self.attention(b, f"{name}.attn")
        b = b + self.conv(self.conv(b, f"{name}.ffn.0"), f"{name}.ffn.1", act=False)
        return self.conv(torch.cat((a, b), 1), f"{name}.cv2")

    # ---- the network

    def __call__(self, pixels_BYX3: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes [B, N, 4] in pixels and scores [B, N, C] of all cells."""
        x = pixels_BYX3.double().permute(0, 3, 1, 2)
        x = self.conv(self.conv(x, "0", stride=2), "1", stride=2)
        x = self.conv(self.c2f(x, "2", 1, True), "3", stride=2)
        p3 = self.c2f(x, "4", 2, True)
        p4 = self.c2f(self.scdown(p3, "5"), "6", 2, True)
        p5 = self.psa(self.sppf(self.c2f(self.scdown(p4, "7"), "8", 1, True), "9"), "10")
        top4 = self.c2f(torch.cat((_twice(p5), p4), 1), "13", 1, False)
        out3 = self.c2f(torch.cat((_twice(top4), p3), 1), "16", 1, False)
        out4 = self.c2f(torch.cat((self.conv(out3, "17", stride=2), top4), 1), "19", 1, False)
        out5 = self.c2f(torch.cat((self.scdown(out4, "20"), p5), 1), "22", 1, True, inverted=True)
        levels = [self.level(x, i) for i, x in enumerate((out3, out4, out5))]
        return torch.cat([boxes for boxes, _ in levels], 1), torch.cat([scores for _, scores in levels], 1)

    def level(self, x: Tensor, i: int) -> tuple[Tensor, Tensor]:
        box, cls = f"23.one2one_cv2.{i}", f"23.one2one_cv3.{i}"
        y = self.conv(self.conv(x, f"{box}.0"), f"{box}.1")
        y = F.conv2d(y, self.w[f"{box}.2.weight"], self.w[f"{box}.2.bias"])
        batch, _, rows, columns = y.shape
        shares = y.reshape(batch, 4, 16, rows, columns).softmax(2)
        left, top, right, bottom = (
            (shares * torch.arange(16.0).double().view(1, 1, 16, 1, 1)).sum(2).unbind(1)
        )
        cy, cx = torch.arange(rows).double()[:, None] + 0.5, torch.arange(columns).double()[None] + 0.5
        boxes = torch.stack((cx - left, cy - top, cx + right, cy + bottom), -1) * (8, 16, 32)[i]
        z = self.conv(self.conv(x, f"{cls}.0.0", depthwise=True), f"{cls}.0.1")
        z = self.conv(self.conv(z, f"{cls}.1.0", depthwise=True), f"{cls}.1.1")
        z = F.conv2d(z, self.w[f"{cls}.2.weight"], self.w[f"{cls}.2.bias"])
        return boxes.flatten(1, 2), torch.sigmoid(z).permute(0, 2, 3, 1).flatten(1, 2)


def _twice(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="nearest")


def best(scores_NC: Tensor, count: int) -> list[tuple[int, int]]:
    """(cell, label) of the best detections of one image, in two steps; equal scores in their order."""
    scores = scores_NC.tolist()
    cells = sorted(range(len(scores)), key=lambda n: (-max(scores[n]), n))[:count]
    pairs = [(cell, label) for cell in cells for label in range(len(scores[cell]))]
    return sorted(pairs, key=lambda pair: -scores[pair[0]][pair[1]])[:count]
