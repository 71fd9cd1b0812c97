"""The three parts of a YOLOv10 detector: features of an image, of three resolutions, boxes and logits.

    p3, p4, p5 = backbone(image);  p3, p4, p5 = neck(p3, p4, p5);  boxes, logits = head(p3, p4, p5)

B images, Y, X rows and columns of an image, multiples of 32; p3, p4, p5 are maps at strides 8, 16, 32. N
cells, those of all maps one behind the other, row by row; R bins of a distance, C classes. Only the head
that needs no suppression of boxes is here. Rounded to the dtype of x after each convolution; boxes are
float32 at least.
Mirrors ultralytics.nn.tasks.DetectionModel (yolov10n.yaml) and ultralytics.nn.modules.head.v10Detect after
fusing: Backbone is its modules 0 to 10, Neck 11 to 22, Head 23.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.conv import Conv2d
from ..L1.detection import BoxDecode
from ..L1.image_ops import UpsampleConcat
from ..L2.conv_attention import PSA
from ..L2.conv_norm_act import ConvNormAct
from ..L2.csp_block import SPPF, C2f, SCDown

STRIDES = (8, 16, 32)


class Backbone(nn.Module):
    def __init__(self, channels: list[int], depths: list[int], num_channels: int = 3) -> None:
        """channels: of the maps at strides 2, 4, 8, 16, 32; depths: of the stages from stride 4 on."""
        super().__init__()
        c1, c2, c3, c4, c5 = channels
        self.stem = ConvNormAct(num_channels, c1, 3, 2)
        self.down2 = ConvNormAct(c1, c2, 3, 2)
        self.stage2 = C2f(c2, c2, depths[0], shortcut=True)
        self.down3 = ConvNormAct(c2, c3, 3, 2)
        self.stage3 = C2f(c3, c3, depths[1], shortcut=True)
        self.down4 = SCDown(c3, c4)
        self.stage4 = C2f(c4, c4, depths[2], shortcut=True)
        self.down5 = SCDown(c4, c5)
        self.stage5 = C2f(c5, c5, depths[3], shortcut=True)
        self.pool = SPPF(c5, c5)
        self.attention = PSA(c5)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pixel_values [B, Y, X, 3] within 0 .. 1 -> maps [B, Y / 8, X / 8, c3], [B, Y / 16, X / 16, c4],
        [B, Y / 32, X / 32, c5]"""
        p3 = self.stage3(self.down3(self.stage2(self.down2(self.stem(pixel_values)))))
        p4 = self.stage4(self.down4(p3))
        return p3, p4, self.attention(self.pool(self.stage5(self.down5(p4))))


class Neck(nn.Module):
    def __init__(self, channels: list[int], depth: int) -> None:
        """channels: of p3, p4, p5, before and after."""
        super().__init__()
        c3, c4, c5 = channels
        self.join = UpsampleConcat()
        self.top4 = C2f(c5 + c4, c4, depth, shortcut=False)
        self.top3 = C2f(c4 + c3, c3, depth, shortcut=False)
        self.down3 = ConvNormAct(c3, c3, 3, 2)
        self.out4 = C2f(c3 + c4, c4, depth, shortcut=False)
        self.down4 = SCDown(c4, c4)
        self.out5 = C2f(c4 + c5, c5, depth, shortcut=True, inverted=True)

    def forward(self, p3: Tensor, p4: Tensor, p5: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps [B, Y / 8, X / 8, c3], [B, Y / 16, X / 16, c4], [B, Y / 32, X / 32, c5] -> the same shapes"""
        top4 = self.top4(self.join(p5, p4))
        out3 = self.top3(self.join(top4, p3))
        out4 = self.out4(torch.cat((self.down3(out3), top4), dim=-1))
        return out3, out4, self.out5(torch.cat((self.down4(out4), p5), dim=-1))


class Head(nn.Module):
    def __init__(self, ch: list[int], nc: int, reg_max: int) -> None:
        """ch: channels of p3, p4, p5; nc: classes; reg_max: bins of a distance."""
        super().__init__()
        width = max(16, ch[0] // 4, 4 * reg_max)
        class_width = max(ch[0], min(nc, 100))
        self.box = nn.ModuleList(
            nn.Sequential(
                ConvNormAct(c, width, 3), ConvNormAct(width, width, 3), Conv2d(width, 4 * reg_max, 1)
            )
            for c in ch
        )
        self.cls = nn.ModuleList(
            nn.Sequential(
                nn.Sequential(ConvNormAct(c, c, 3, g=c), ConvNormAct(c, class_width)),
                nn.Sequential(
                    ConvNormAct(class_width, class_width, 3, g=class_width),
                    ConvNormAct(class_width, class_width),
                ),
                Conv2d(class_width, nc, 1),
            )
            for c in ch
        )
        self.decode = nn.ModuleList(BoxDecode(stride) for stride in STRIDES)

    def forward(self, p3: Tensor, p4: Tensor, p5: Tensor) -> tuple[Tensor, Tensor]:
        """Maps of three strides -> boxes [B, N, 4] in pixels (left, top, right, bottom), logits [B, N, C]"""
        maps = (p3, p4, p5)
        boxes = [decode(box(x)) for decode, box, x in zip(self.decode, self.box, maps)]
        logits = [cls(x).flatten(1, 2) for cls, x in zip(self.cls, maps)]
        return torch.cat(boxes, dim=1), torch.cat(logits, dim=1)
