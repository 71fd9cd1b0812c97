"""One side of a trial of a model that answers images. `answer` only says how many answers there are: the
judge times it with its own clock and asks afterwards for those that it wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.engine.detector import Detector
from fastkernels.engine.encoder import Encoder
from fastkernels.runner.model_side import ModelSide

FACES: dict[str, type[Encoder | Detector]] = {face.answer: face for face in (Encoder, Detector)}


class ImageSide(ModelSide):
    def __init__(
        self, layers: Sequence[str], model: str, kind: str, noise: Sequence[str] = (), **engine: Any
    ) -> None:
        """kind: of answer, which chooses the face."""
        super().__init__(layers, noise)
        self.face = FACES[kind](model, overlay=self.overlay, **engine)
        self.model, self.device = self.face.model, self.face.device
        self._images: list[Tensor] = []
        self._answers: list[Any] = []

    def load(self, images: list[np.ndarray]) -> dict[str, Any]:
        """Take images uint8 [H, W, C] for the next `answer`."""
        self._images, self._answers = [torch.from_numpy(image) for image in images], []
        return {}

    def answer(self, batch: int) -> dict[str, Any]:
        """Batches one after another, each waited for; the answers stay here until `outputs`."""
        self._answers = []
        for start in range(0, len(self._images), batch):
            self._answers += self.face.run(self._images[start : start + batch])
            self.synchronise()
        return {"answers": len(self._answers)}

    def outputs(self, chosen: list[int]) -> dict[str, Any]:
        return {"answers": [self.face.listed(self._answers[i]) for i in chosen]}

    def eager(self) -> AbstractContextManager[None]:
        return self.face.eager()

    def run_once(self, images: list[np.ndarray]) -> None:
        self.load(images)
        self.answer(len(images))

    def engine_stats(self) -> dict[str, Any]:
        return self.face.stats()
