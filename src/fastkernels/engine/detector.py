"""`Detector`: images to labelled boxes, by a model whose head needs no suppression of boxes.

detector = Detector("yolov10", config="tiny", seed=1)       a registered configuration: random weights
found = detector.detect([image_HWC, ...])                   Detections of each image

The choice of boxes runs on the device, inside the graph of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from fastkernels.engine.batching import Batching, Pixels
from fastkernels.engine.checks import Errors
from fastkernels.engine.image_model import ImageModel
from fastkernels.errors import RequestError

MIN_SCORE, MOST = 0.25, 100


class Detections(NamedTuple):
    """Of one image, K = MOST places, falling scores; free places have label -1 and zeros else."""

    boxes_K4: Tensor  # left, top, right, bottom in pixels; float32
    scores_K: Tensor  # float32, above MIN_SCORE
    labels_K: Tensor  # int64


class Detector(ImageModel):
    """A model that maps images to boxes; those of one size share launches."""

    answer = "detections"

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
        found = self.run(images, errors)
        return [one if isinstance(one, RequestError) else Detections(*one) for one in found]

    def fetched(self, answers: Sequence[Sequence[Tensor]]) -> list[np.ndarray]:
        """Of each image on the host, float32 [N, 6]: left, top, right, bottom, score and label of the places
        that are taken."""
        boxes_BK4, scores_BK, labels_BK = (torch.stack(list(part)) for part in zip(*answers))
        rows_BK6 = torch.cat((boxes_BK4, scores_BK[..., None], labels_BK[..., None]), dim=-1).float()
        return [rows_K6[rows_K6[:, 5] >= 0] for rows_K6 in rows_BK6.cpu().numpy()]

    def _batching(self) -> Batching:
        return Pixels(self.model.multiple, self.model.num_channels, self.dtype, self.device)

    def _forward(self, *args: Any) -> list[Tensor]:
        boxes_BK4, scores_BK, labels_BK = (x[:, :MOST] for x in self.model.select(*self.model(*args)))
        is_kept_BK = scores_BK > MIN_SCORE
        missing = MOST - scores_BK.shape[1]
        boxes_BK4 = torch.where(is_kept_BK[..., None], boxes_BK4, 0)
        scores_BK = torch.where(is_kept_BK, scores_BK, 0)
        labels_BK = torch.where(is_kept_BK, labels_BK, -1)
        if missing:
            pad = torch.nn.functional.pad
            boxes_BK4 = pad(boxes_BK4, (0, 0, 0, missing))
            scores_BK, labels_BK = pad(scores_BK, (0, missing)), pad(labels_BK, (0, missing), value=-1)
        return [boxes_BK4, scores_BK, labels_BK]
