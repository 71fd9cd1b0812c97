"""`ImagePipeline`: encoded prompts to the latents of images, by a transformer that denoises step by step.

pipeline = ImagePipeline("flux", config="tiny", seed=1)     a registered configuration: random weights
latents = pipeline.generate([ImageRequest(text_SJ, pooled_P, height=1024, width=1024, seed=7)])

A prompt is what the model's text encoders make of it: features of its tokens and pooled ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.engine import flow_matching, latents
from fastkernels.engine.batching import Batching, Stacked
from fastkernels.engine.image_model import ImageModel
from fastkernels.engine.program import Call, Program
from fastkernels.errors import RequestError


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """text [S, J] and pooled [P]: features of the prompt. height and width in pixels, multiples of 16."""

    text: Tensor
    pooled: Tensor
    height: int
    width: int
    steps: int = 28
    guidance: float = 3.5
    seed: int = 0


class ImagePipeline(ImageModel):
    """A text-to-image model; images of a launch share size, prompt length and steps."""

    answer = "image"
    usual_batch = 8

    def generate(self, requests: Sequence[ImageRequest]) -> list[Tensor]:
        """Latents of each image as tokens [L, C] on the model's device, in the order of the requests. They
        may still be under way on the device. Raises RequestError for the first that cannot be served."""
        return self.run(requests)

    def listed(self, answer: Tensor) -> list[list[float]]:
        return answer.float().tolist()

    def _batching(self) -> Batching:
        return Stacked()

    def _program(self, request: ImageRequest) -> Program:
        """The program of an image: one need, as many steps as it asks for."""
        self._require_served(request)
        rows, columns = (side // latents.TOKEN_PIXELS for side in (request.height, request.width))
        noise_LC = latents.noise(self.model.in_channels, rows, columns, request.seed, self.dtype)
        levels = flow_matching.noise_levels(request.steps, rows * columns)
        done = yield Call(
            "model",
            [self._sent(noise_LC), torch.zeros((), dtype=torch.int64, device=self.device)],
            self._sent(request.text.to(self.dtype)),
            self._sent(request.pooled.to(self.dtype)),
            self._sent(levels),
            self._sent(torch.tensor(request.guidance, dtype=torch.float32)),
            (rows, columns),
            loop=request.steps,
        )
        return done[0]

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

    def _require_served(self, request: ImageRequest) -> None:
        sides, pixels = (request.height, request.width), latents.TOKEN_PIXELS
        if min(sides) < pixels or any(side % pixels for side in sides):
            raise RequestError(
                f"an image of {request.height} x {request.width} pixels: sides must be multiples of {pixels}"
            )
        if request.steps < 1:
            raise RequestError(f"{request.steps} steps: at least one is needed")
        text_features, pooled_features = self.model.text_features, self.model.pooled_features
        if request.text.dim() != 2 or not len(request.text) or request.text.shape[1] != text_features:
            raise RequestError(f"text {list(request.text.shape)}: expected [tokens, {text_features}]")
        if tuple(request.pooled.shape) != (pooled_features,):
            raise RequestError(f"pooled {list(request.pooled.shape)}: expected [{pooled_features}]")

    def _sent(self, tensor: Tensor) -> Tensor:
        """On the device; from pinned memory, so that the host goes on."""
        if self.device.type == "cuda" and not tensor.is_cuda:
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)
