"""`ImagePipeline`: prompts to images by text encoders, a transformer that denoises in steps and a decoder.

pipeline = ImagePipeline("flux", config="tiny", seed=1)     a registered configuration: random weights
images = pipeline.generate([ImageRequest(t5_ids, clip_ids, height=1024, width=1024, seed=7)])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, overload

import torch
from torch import Tensor

from fastkernels.engine import flow_matching, latents
from fastkernels.engine.batching import require_values, sent
from fastkernels.engine.checks import Errors
from fastkernels.engine.flow_matching import Schedule
from fastkernels.engine.image_model import ImageModel
from fastkernels.engine.image_request import ImageRequest, checked, checked_sides
from fastkernels.engine.program import Call, Program
from fastkernels.engine.prompts import Prompts, is_ids
from fastkernels.errors import RequestError
from fastkernels.loader.hub import SCHEDULER
from fastkernels.nn.config import ConfigReader

ENCODED_AT_ONCE = 8  # prompts of 512 tokens
DECODED_AT_ONCE = 4  # images of 1024 x 1024 pixels: a map of 256 channels has 2^30 values, 2 GiB


class ImagePipeline(ImageModel):
    """A text-to-image model; images of a launch share size, prompt length and steps."""

    answer = "image"
    usual_batch = 8

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
        or latents as tokens [L, C]. They may still be under way. errors: as of `run`."""
        return self.run(requests, errors)

    def decode(self, latents_LC: Tensor, height: int, width: int) -> Tensor:
        """The image [3, height, width] of latents that `generate` gave. RequestError without a decoder, and
        for other latents than those of such an image."""
        self._require_decoder()
        rows, columns = (side // latents.TOKEN_PIXELS for side in checked_sides(height, width))
        expected = [rows * columns, self.model.in_channels]
        if not isinstance(latents_LC, Tensor) or not latents_LC.is_floating_point():
            raise RequestError(f"latents must be a tensor of floats {expected}, not {latents_LC!r:.60}")
        require_values("latents", latents_LC)
        if list(latents_LC.shape) != expected:
            raise RequestError(
                f"latents {list(latents_LC.shape)}: an image of {height} x {width} pixels has {expected}"
            )
        (image,) = self.engine.run([_decoded(sent(latents_LC.to(self.dtype), self.device), rows, columns)])
        return image

    def _configure(self) -> None:
        reader = ConfigReader(self.source.config)
        is_told = reader.has(SCHEDULER)
        self.schedule = Schedule.of(reader.section(SCHEDULER)) if is_told else Schedule()

    def _program(self, request: ImageRequest) -> Program:
        """The program of an image: its prompt's features, as many steps as it asks for, then its decoder."""
        request = checked(request)
        if request.output == "image":
            self._require_decoder()
        text_SJ, pooled_P = yield from self._encoded(*self.prompts.checked(request.text, request.pooled))
        rows, columns = (side // latents.TOKEN_PIXELS for side in (request.height, request.width))
        noise_LC = latents.noise(self.model.in_channels, rows, columns, request.seed, self.dtype)
        levels = flow_matching.noise_levels(request.steps, rows * columns, self.schedule)
        done = yield Call(
            "model",
            [sent(noise_LC, self.device), torch.zeros((), dtype=torch.int64, device=self.device)],
            text_SJ,
            pooled_P,
            sent(levels, self.device),
            sent(torch.tensor(request.guidance, dtype=torch.float32), self.device),
            (rows, columns),
            loop=request.steps,
        )
        if request.output == "latent" or self.model.vae is None:
            return done[0]
        return (yield from _decoded(done[0], rows, columns))

    def _encoded(self, text: Tensor, pooled: Tensor) -> Program:
        """Features [S, J] and [P] on the device; what comes as ids goes through its encoder."""
        sides = {"t5": text, "clip": pooled}
        ids = {stage: side for stage, side in sides.items() if is_ids(side)}
        made = yield [Call(stage, sent(side.long(), self.device)) for stage, side in ids.items()]
        features = dict(zip(ids, made))
        return [
            features[stage] if stage in ids else sent(side.to(self.dtype), self.device)
            for stage, side in sides.items()
        ]

    def _further_stages(self) -> dict[str, tuple[Callable[..., Any], int]]:
        model, stages = self.model, {}
        if model.text_encoder is not None:
            stages |= {
                "t5": (model.text_encoder_2, ENCODED_AT_ONCE),
                "clip": (model.text_encoder, ENCODED_AT_ONCE),
            }
        if model.vae is not None:
            stages["vae"] = (self._decode, DECODED_AT_ONCE)
        return stages

    def _forward(
        self,
        state: list[Tensor],
        text_BSJ: Tensor,
        pooled_BP: Tensor,
        levels_BN: Tensor,
        guidance_B: Tensor,
        grid: list[int],
    ) -> list[Tensor]:
        """One step of a batch; `state` is the latents [B, L, C] and how many steps they have behind them."""
        x_BLC, done_B = state
        level_B, next_level_B = (levels_BN.gather(1, at[:, None])[:, 0] for at in (done_B, done_B + 1))
        timestep_B = flow_matching.timesteps(level_B, self.dtype)
        scale_B = flow_matching.guidance(guidance_B, self.dtype) if self.model.has_guidance else None
        rows, columns = grid
        img_ids = latents.grid_ids(rows, columns, self.device)
        txt_ids = torch.zeros(text_BSJ.shape[1], 3, dtype=torch.int64, device=self.device)
        velocity_BLC = self.model(x_BLC, text_BSJ, pooled_BP, timestep_B, scale_B, img_ids, txt_ids)
        return [flow_matching.euler_step(x_BLC, velocity_BLC, level_B, next_level_B), done_B + 1]

    def _decode(self, x_BLC: Tensor, grid: list[int]) -> Tensor:
        """Images of a batch of latents."""
        return self.model.decode(latents.unpack(x_BLC, *grid))

    def _require_decoder(self) -> None:
        if self.model.vae is None:
            raise RequestError(
                f"{self.source.name} has no decoder, because there is no vae beside its transformer: it "
                "answers with latents. Ask for output='latent', or load the whole folder of the pipeline"
            )


def _decoded(latents_LC: Tensor, rows: int, columns: int) -> Program:
    """The image of finished latents, rows * columns tokens."""
    return (yield Call("vae", latents_LC, (rows, columns)))
