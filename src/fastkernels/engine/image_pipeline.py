"""`ImagePipeline`: encoded prompts to the latents of images, by a transformer that denoises step by step.

pipeline = ImagePipeline("flux", config="tiny", seed=1)     a registered configuration: random weights
latents = pipeline.generate([ImageRequest(text_SJ, pooled_P, height=1024, width=1024, seed=7)])

A prompt is what the model's text encoders make of it: features of its tokens and pooled ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastkernels.engine import flow_matching, latents, memory
from fastkernels.engine.batch_stage import BatchStage
from fastkernels.engine.call_graphs import CallGraphs
from fastkernels.engine.machine import device_of, dtype_of
from fastkernels.engine.program import Call, Engine, Program
from fastkernels.errors import RequestError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model, weights_bytes
from fastkernels.nn.context import use_step
from fastkernels.records import Size


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


class ImagePipeline:
    """A text-to-image model; `model`, `dtype`, `device`, `overlay`, `config`, `size` and `seed` as in LLM.
    max_batch: images of one launch; they share size, prompt length and steps.

    Raises UsageError and its kin for what cannot be loaded, MachineError for what does not fit this machine.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | dict[str, Any],
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        overlay: Overlay | None = None,
        config: str | None = None,
        size: Size | None = None,
        seed: int = 0,
        max_batch: int = 8,
        enforce_eager: bool = False,
    ) -> None:
        self.device = device_of(device)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        self.source = find(model, config, size or ("full" if self.device.type == "cuda" else "tiny"))
        self.source.require(("image",), "ImagePipeline")
        self.dtype = self.source.dtype(self.device) if dtype == "auto" else dtype_of(dtype)
        self.overlay = overlay or Overlay.over_baseline()
        memory.require_weights_fit(weights_bytes(self.source, self.dtype), self.device)
        self.model: Any = load_model(self.source, self.overlay, self.device, self.dtype, seed)
        self.graphs = CallGraphs(self._step, self.device, enforce_eager)
        self.stage = BatchStage(self.graphs, max_batch=max_batch)
        self.engine = Engine({"denoise": self.stage})

    def generate(self, requests: Sequence[ImageRequest]) -> list[Tensor]:
        """Latents of each image as tokens [L, C] on the model's device, in the order of the requests. They
        may still be under way on the device. Raises RequestError for the first that cannot be served."""
        found = self.engine.run(self._denoise(request) for request in requests)
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Without CUDA graphs for the body: hooks on modules see every call."""
        before, self.graphs.disabled = self.graphs.disabled, "eager()"
        try:
            yield
        finally:
            self.graphs.disabled = before

    def stats(self) -> dict[str, Any]:
        """Counters since the start: launches, graphs, eager launches by reason."""
        return {**self.graphs.stats(), "images": sum(self.stage.batch_sizes)}

    def _denoise(self, request: ImageRequest) -> Program:
        """The program of an image: one need, as many steps as it asks for."""
        self._require_served(request)
        rows, columns = (side // latents.TOKEN_PIXELS for side in (request.height, request.width))
        noise_LC = latents.noise(self.model.in_channels, rows, columns, request.seed, self.dtype)
        levels = flow_matching.noise_levels(request.steps, rows * columns)
        done = yield Call(
            "denoise",
            [self._sent(noise_LC), torch.zeros((), dtype=torch.int64, device=self.device)],
            self._sent(request.text.to(self.dtype)),
            self._sent(request.pooled.to(self.dtype)),
            self._sent(levels),
            self._sent(torch.tensor(request.guidance, dtype=torch.float32)),
            (rows, columns),
            loop=request.steps,
        )
        return done[0]

    def _step(
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
        with use_step(None):  # attention plans made for one layer serve all
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
