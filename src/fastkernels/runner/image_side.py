"""One side of a trial of an image encoder. `encode` only says how many features there are: the judge times it
with its own clock and asks afterwards for those that it wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.engine.encoder import Encoder
from fastkernels.runner.model_side import ModelSide


class ImageSide(ModelSide):
    def __init__(self, layers: Sequence[str], model: str, noise: Sequence[str] = (), **engine: Any) -> None:
        super().__init__(layers, noise)
        self.encoder = Encoder(model, overlay=self.overlay, **engine)
        self.model, self.device = self.encoder.model, self.encoder.device
        self._images: list[Tensor] = []
        self._features: list[Tensor] = []

    def load(self, images: list[np.ndarray]) -> dict[str, Any]:
        """Take images uint8 [H, W, C] for the next `encode`."""
        self._images, self._features = [torch.from_numpy(image) for image in images], []
        return {}

    def encode(self, batch: int) -> dict[str, Any]:
        """Batches one after another, each waited for; the features stay here until `outputs`."""
        self._features = []
        for start in range(0, len(self._images), batch):
            self._features.append(self.encoder.encode(self._images[start : start + batch]))
            self.synchronise()
        return {"features": sum(len(part) for part in self._features)}

    def outputs(self, chosen: list[int]) -> dict[str, Any]:
        features_BD = torch.cat(self._features).float().cpu()
        return {"features": features_BD[chosen].tolist()}

    def eager(self) -> AbstractContextManager[None]:
        return self.encoder.eager()

    def run_once(self, images: list[np.ndarray]) -> None:
        self.load(images)
        self.encode(len(images))

    def engine_stats(self) -> dict[str, Any]:
        return self.encoder.stats()
