"""One side of a trial of a text-to-image model. `generate` ends with latents and only says how many there
are: the judge times it with its own clock and asks afterwards for the images that it wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest
from fastkernels.runner.arrays import packed
from fastkernels.runner.model_side import ModelSide


class GenerationSide(ModelSide):
    def __init__(self, layers: Sequence[str], model: str, noise: Sequence[str] = (), **engine: Any) -> None:
        super().__init__(layers, noise)
        self.pipeline = ImagePipeline(model, overlay=self.overlay, **engine)
        self.model: Any = self.pipeline.model
        self.device = self.pipeline.device
        self._requests: list[ImageRequest] = []
        self._latents: list[Tensor] = []

    def load(self, images: list[dict[str, Any]]) -> dict[str, Any]:
        """Take images for the next `generate`: seed, height, width, prompt_len and steps of each."""
        self._requests, self._latents = [self._request(**image) for image in images], []
        return {}

    def generate(self, batch: int) -> dict[str, Any]:
        """Batches one after another, each waited for; their latents stay here until `outputs`."""
        self._latents = []
        for start in range(0, len(self._requests), batch):
            self._latents += self.pipeline.generate(self._requests[start : start + batch])
            self.synchronise()
        return {"images": len(self._latents)}

    def outputs(self, index: int) -> dict[str, Any]:
        """One image as [pixels, 3]; where the model has no decoder its latents [tokens, channels]."""
        latents_LC, request = self._latents[index], self._requests[index]
        if self.model.vae is None:
            values = latents_LC.float()
        else:
            values = self.pipeline.decode(latents_LC, request.height, request.width).flatten(1).T
        return {"image": packed(values.cpu().numpy())}

    def eager(self) -> AbstractContextManager[None]:
        return self.pipeline.eager()

    def run_once(self, images: list[dict[str, Any]]) -> None:
        """To the images: modules of the decoder are reached too."""
        self.load(images)
        self.generate(len(images))
        for index in range(len(images)):
            self.outputs(index)

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
