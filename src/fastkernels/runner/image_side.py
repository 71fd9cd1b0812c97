"""One side of a trial of a model that answers images. `answer` says a digest of every answer: the judge times
it with its own clock and asks afterwards for those that it wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from fastkernels.engine.detector import Detector
from fastkernels.engine.encoder import Encoder
from fastkernels.runner.arrays import digest, packed
from fastkernels.runner.handed import Form, taken
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
        self._answers: list[np.ndarray] = []

    def answer(self, start: int, forms: Sequence[Form], descriptors: Sequence[int]) -> dict[str, Any]:
        """A batch of images uint8 [H, W, C], the first of which is number `start` of a run. The answers are
        fetched and stay here until `outputs`."""
        del self._answers[start:]
        return {"digests": [digest(answer) for answer in self._answer(taken(forms, descriptors))]}

    def outputs(self, chosen: list[int]) -> dict[str, Any]:
        return {"arrays": [packed(self._answers[i]) for i in chosen]}

    def eager(self) -> AbstractContextManager[None]:
        return self.face.eager()

    def run_once(self, images: list[np.ndarray]) -> None:
        self._answer(images)

    def engine_stats(self) -> dict[str, Any]:
        return self.face.stats()

    def _answer(self, images: list[np.ndarray]) -> list[np.ndarray]:
        found = self.face.fetched(self.face.run([torch.from_numpy(image) for image in images]))
        self._answers += found
        return found
