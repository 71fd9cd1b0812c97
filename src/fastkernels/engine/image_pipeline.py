"""`ImagePipeline`: prompts to images by text encoders, a net that denoises in steps and a decoder.

pipeline = ImagePipeline("flux", config="tiny", seed=1)     a registered configuration: random weights
images = pipeline.generate([ImageRequest(t5_ids, clip_ids, height=1024, width=1024, seed=7)])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, overload

from torch import Tensor

from fastkernels.engine.core.checks import Errors
from fastkernels.engine.media.image_request import ImageRequest, Prompts, checked, checked_sides
from fastkernels.engine.model import Model
from fastkernels.errors import RequestError
from fastkernels.nn.batching import require_values
from fastkernels.nn.program import Program


class ImagePipeline(Model):
    """A text-to-image model; images of a launch share size, prompt length and steps."""

    answers = ("image",)

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts(self.model, self.source.name, self.source.folder)

    @overload
    def generate(
        self, requests: Sequence[ImageRequest], errors: Literal["raise"] = "raise"
    ) -> list[Tensor]: ...

    @overload
    def generate(
        self, requests: Sequence[ImageRequest], errors: Literal["return"]
    ) -> list[Tensor | RequestError]: ...

    def generate(
        self, requests: Sequence[ImageRequest], errors: Errors = "raise"
    ) -> list[Tensor] | list[Tensor | RequestError]:
        """Of each request, in order and on the model's device: RGB float32 [3, height, width] within 0 .. 1,
        or latents, as tokens [L, C] or a map [Y, X, C]. They may still be under way. errors: as of `run`."""
        return self.run(requests, errors)

    def decode(self, latents: Tensor, height: int, width: int) -> Tensor:
        """The image [3, height, width] of latents that `generate` gave. RequestError without a decoder, and
        for other latents than those of such an image."""
        self._require_decoder()
        expected = self.model.latents_of(*checked_sides(height, width))
        if not isinstance(latents, Tensor) or not latents.is_floating_point():
            raise RequestError(f"latents must be a tensor of floats {expected}, not {latents!r:.60}")
        require_values("latents", latents)
        if list(latents.shape) != expected:
            raise RequestError(
                f"latents {list(latents.shape)}: an image of {height} x {width} pixels has {expected}"
            )
        (image,) = self.engine.run([self._finished(latents, height, width)])
        return image

    def _program(self, request: ImageRequest) -> Program:
        """The program of an image, and its decoder."""
        request = checked(request)
        if request.output == "image":
            self._require_decoder()
        text, pooled = self.prompts.checked(request.text, request.pooled)
        numbers = {name: getattr(request, name) for name in ("height", "width", "steps", "guidance", "seed")}
        given = {name: number for name, number in numbers.items() if number is not None}
        outputs = yield from super()._program({"text": text, "pooled": pooled, **given})
        if request.output == "latent" or self.model.vae is None:
            return outputs["latents"]
        return (yield from self._finished(outputs["latents"], request.height, request.width))

    def _finished(self, latents: Tensor, height: int, width: int) -> Program:
        outputs = yield from self.model.finish({"latents": latents}, height=height, width=width)
        return outputs["image"].permute(2, 0, 1)

    def _require_decoder(self) -> None:
        if self.model.vae is None:
            raise RequestError(
                f"{self.source.name} has no decoder, because there is no vae beside its denoiser: it "
                "answers with latents. Ask for output='latent', or load the whole folder of the pipeline"
            )
