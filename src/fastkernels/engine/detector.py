"""`Detector`: images to labelled boxes, by a model whose head needs no suppression of boxes.

detector = Detector("yolov10", config="tiny", seed=1)       a registered configuration: random weights
found = detector.detect([image_HWC, ...])                   Detections of each image

The choice of boxes runs on the device, inside the graph of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

from torch import Tensor

from fastkernels.engine.core.checks import Errors
from fastkernels.engine.model import Model
from fastkernels.errors import RequestError
from fastkernels.nn.program import Program


class Detections(NamedTuple):
    """Of one image, K places, falling scores; free places have label -1 and zeros else."""

    boxes_K4: Tensor  # left, top, right, bottom in pixels; float32
    scores_K: Tensor  # float32
    labels_K: Tensor  # int64


class Detector(Model):
    """A model that maps images to boxes; those of one size share launches."""

    answers = ("detections",)

    @overload
    def detect(self, images: Sequence[Any], errors: Literal["raise"] = "raise") -> list[Detections]: ...

    @overload
    def detect(self, images: Sequence[Any], errors: Literal["return"]) -> list[Detections | RequestError]: ...

    def detect(
        self, images: Sequence[Any], errors: Errors = "raise"
    ) -> list[Detections] | list[Detections | RequestError]:
        """Of each image, uint8 [H, W, 3] (a tensor, an array, an RGB image of PIL) with sides that the
        coarsest cell, 32 pixels, divides. They lie on the device and may still be under way. errors: as of
        `run`."""
        return self.run(images, errors)

    def _program(self, request: Any) -> Program:
        rows_K6 = (yield from super()._program({"image": request}))["detections"]
        return Detections(rows_K6[:, :4], rows_K6[:, 4], rows_K6[:, 5].long())
