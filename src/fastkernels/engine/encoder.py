"""`Encoder`: images to features.

encoder = Encoder("google/siglip2-so400m-patch16-naflex")     a Hugging Face folder or id: real weights
encoder = Encoder("siglip2", config="tiny", seed=1)           a registered configuration: random weights
features_BD = encoder.encode([image_HWC, ...])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from fastkernels.engine.core.checks import Errors
from fastkernels.engine.model import Model
from fastkernels.errors import RequestError
from fastkernels.nn.program import Program


class Encoder(Model):
    """A model that maps an image to one feature."""

    answers = ("features",)

    @overload
    def encode(self, images: Sequence[Any], errors: Literal["raise"] = "raise") -> Tensor: ...

    @overload
    def encode(self, images: Sequence[Any], errors: Literal["return"]) -> list[Tensor | RequestError]: ...

    def encode(self, images: Sequence[Any], errors: Errors = "raise") -> Tensor | list[Tensor | RequestError]:
        """Features [B, D] on the model's device, in the order of the images, which are uint8 [H, W, C]
        (tensors, arrays, RGB images of PIL) with sides that the patch size divides. They may still be under
        way on the device. errors: as of `run`; with "return" a list of features [D] and RequestErrors."""
        features = self.run(images, errors)
        if errors == "return":
            return features
        if not features:
            return torch.empty(0, self.model.num_features, dtype=self.dtype, device=self.device)
        return torch.stack(features)

    def _program(self, request: Any) -> Program:
        return (yield from super()._program({"image": request}))["features"]
