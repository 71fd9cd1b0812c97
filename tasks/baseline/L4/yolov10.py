"""YOLOv10 detector: images to a box and class logits for every cell, and a module that chooses the best.

    boxes, logits = head(neck(backbone(x)))          detections = select(boxes, logits)

B images, Y, X rows and columns, N cells, C classes, K detections. Norms are folded into the convolutions
when weights are loaded; parameters and activations have the dtype of the module, boxes and scores float32
at least. Of the two heads of a checkpoint the one-to-one head is used. `config` holds the numbers of a
yolov10*.yaml; the layout is that of its size n.
Mirrors ultralytics.nn.tasks.DetectionModel (yolov10n.yaml) after fusing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import Pixels
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.detections import rows_of_detections
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.folding import Folding
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.detection import TopDetections
from ..L3.yolo import Backbone, Head, Neck

WIDTHS = (64, 128, 256, 512, 1024)  # of maps at strides 2 .. 32, before the width multiple
DEPTHS = (3, 6, 6, 3)  # of stages from stride 4 on, before the depth multiple
NECK_DEPTH = 3
CHANNEL_UNIT = 8  # widths are multiples of it
MULTIPLE = 32  # image sides
# A checkpoint's module -> ours.
MODULES = {
    0: "backbone.stem",
    1: "backbone.down2",
    2: "backbone.stage2",
    3: "backbone.down3",
    4: "backbone.stage3",
    5: "backbone.down4",
    6: "backbone.stage4",
    7: "backbone.down5",
    8: "backbone.stage5",
    9: "backbone.pool",
    10: "backbone.attention",
    13: "neck.top4",
    16: "neck.top3",
    17: "neck.down3",
    19: "neck.out4",
    20: "neck.down4",
    22: "neck.out5",
}
HEAD = 23
HUB, OWN = "model.model", "model"  # what names begin with, on the Hub and in the module's own files


class YOLOv10(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        width, most = reader.number("width_multiple"), reader.integer("max_channels")
        depth = reader.number("depth_multiple")
        channels = [CHANNEL_UNIT * -(-int(min(c, most) * width) // CHANNEL_UNIT) for c in WIDTHS]
        depths = [max(1, round(n * depth)) for n in DEPTHS]
        self.num_classes = reader.integer("num_classes")
        self.num_channels = reader.integer("num_channels", default=3)
        self.multiple = MULTIPLE

        self.backbone = Backbone(channels, depths, self.num_channels)
        self.neck = Neck(channels[2:], max(1, round(NECK_DEPTH * depth)))
        self.head = Head(channels[2:], self.num_classes, reader.integer("reg_max", default=16))
        self.select = TopDetections(reader.integer("max_detections", default=300))
        self.weight_map = weight_map(reader.number("batch_norm_eps", default=1e-3))

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """pixel_values [B, Y, X, 3] within 0 .. 1, Y and X multiples of 32 -> boxes [B, N, 4] in pixels,
        logits [B, N, C]"""
        return self.head(*self.neck(*self.backbone(pixel_values)))

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over images of one size calls, with what chooses among its boxes."""
        assert batch.images is not None
        boxes_BN4, logits_BNC = yield run, (torch.empty(*batch.images, self.num_channels),)
        yield "select", (boxes_BN4, logits_BNC)

    def detect(self, pixel_values: Tensor) -> Tensor:
        """[B, Y, X, 3] -> [B, 100, 6]: left, top, right, bottom in pixels, score above 0.25, label; falling
        scores. Free places have label -1 and zeros else."""
        return rows_of_detections(*self.select(*self(pixel_values)))

    def stages(self) -> dict[str, Stage]:
        return {"detect": Stage(Pixels(self.multiple, self.num_channels, self.place))}

    def program(self, image: Tensor) -> Program:
        """uint8 [H, W, 3], sides multiples of 32 -> detections [100, 6]"""
        return {"detections": (yield Call("detect", image))}


def weight_map(batch_norm_eps: float) -> WeightMap:
    """Names as after folding. The head with suppression is left out. Bins are 0, 1, 2 .. by definition."""
    names, spellings = _names(HUB), _names(OWN)
    ignored = [
        f"{prefix}.{HEAD}.{name}"
        for prefix in (HUB, OWN)
        for name in ("cv2.*.*.conv.*", "cv3.*.*.*.conv.*", "cv2.*.2.*", "cv3.*.2.*", "dfl.conv.weight")
    ]
    sums = {"cv1.2.conv": ("cv1.2.conv.conv", "cv1.2.conv1.conv")}
    return WeightMap(
        names, ignored=tuple(ignored), spellings=spellings, folding=Folding(batch_norm_eps, sums)
    )


def _names(prefix: str) -> dict[str, str]:
    """Every convolution: of a module itself, and of what lies up to four names below it."""
    names: dict[str, str] = {}
    for index, ours in MODULES.items():
        for below in range(5):
            names |= _convolution(f"{prefix}.{index}{'.*' * below}", f"{ours}{'.*' * below}")
    for theirs, ours, below in (("one2one_cv2", "head.box", 2), ("one2one_cv3", "head.cls", 3)):
        # The last one of a branch has no norm. It comes first: the first pattern that fits counts.
        names[f"{prefix}.{HEAD}.{theirs}.*.2.*"] = f"{ours}.*.2.*"
        names |= _convolution(f"{prefix}.{HEAD}.{theirs}{'.*' * below}", f"{ours}{'.*' * below}")
    return names


def _convolution(theirs: str, ours: str) -> dict[str, str]:
    return {f"{theirs}.conv.weight": f"{ours}.conv.weight", f"{theirs}.conv.bias": f"{ours}.bias"}
