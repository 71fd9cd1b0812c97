"""One side of a trial of a text-to-image model. `generate` ends with latents and says a digest of each: the
judge times it with its own clock and asks afterwards for those that it wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest
from fastkernels.runner.arrays import digest, packed
from fastkernels.runner.model_side import ModelSide


class GenerationSide(ModelSide):
    def __init__(self, layers: Sequence[str], model: str, noise: Sequence[str] = (), **engine: Any) -> None:
        super().__init__(layers, noise)
        self.pipeline = ImagePipeline(model, overlay=self.overlay, **engine)
        self.model: Any = self.pipeline.model
        self.device = self.pipeline.device
        self._latents: list[np.ndarray] = []

    def generate(self, start: int, images: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch of images by seed, height, width, prompt_len and steps, the first of which is number
        `start` of a run. Their latents are fetched and stay here until `outputs`."""
        del self._latents[start:]
        latents = self.pipeline.generate([self._request(**image) for image in images])
        fetched = [latents_LC.float().cpu().numpy() for latents_LC in latents]
        self._latents += fetched
        return {"digests": [digest(latents) for latents in fetched]}

    def outputs(self, chosen: list[int]) -> dict[str, Any]:
        """Latents [tokens, channels]."""
        return {"arrays": [packed(self._latents[i]) for i in chosen]}

    def decoded(self, latents: np.ndarray, height: int, width: int) -> dict[str, Any]:
        """The image of latents as [pixels, 3]; where the model has no decoder the latents themselves."""
        if self.model.vae is None:
            return {"arrays": [packed(latents)]}
        latents_LC = torch.tensor(latents, dtype=self.pipeline.dtype, device=self.device)
        pixels_P3 = self.pipeline.decode(latents_LC, height, width).flatten(1).T
        return {"arrays": [packed(pixels_P3.cpu().numpy())]}

    def eager(self) -> AbstractContextManager[None]:
        return self.pipeline.eager()

    def run_once(self, images: list[dict[str, Any]]) -> None:
        """To the images: modules of the decoder are reached too."""
        self.generate(0, images)
        for image, latents in zip(images, self._latents):
            self.decoded(latents, image["height"], image["width"])

    def engine_stats(self) -> dict[str, Any]:
        return self.pipeline.stats()

    def _request(self, seed: int, height: int, width: int, prompt_len: int, steps: int) -> ImageRequest:
        """A prompt is random ids from the image's seed; of a model without text encoders random features,
        drawn here: they are large, the seed is not."""
        model, generator = self.model, torch.Generator().manual_seed(seed)
        if model.text_encoder is None:
            text = torch.randn(prompt_len, model.text_features, generator=generator)
            pooled = torch.randn(model.pooled_features, generator=generator)
        else:
            text = torch.randint(model.t5_vocab, (prompt_len,), generator=generator)
            pooled = torch.randint(model.clip_vocab, (model.clip_length,), generator=generator)
        return ImageRequest(text, pooled, height, width, steps, seed=seed, output="latent")
