"""`Encoder`: images to features, by a model that encodes packed images of any resolution.

encoder = Encoder("google/siglip2-so400m-patch16-naflex")     a Hugging Face folder or id: real weights
encoder = Encoder("siglip2", config="tiny", seed=1)           a registered configuration: random weights
features_BD = encoder.encode([image_HWC, ...])
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fastkernels.engine import memory
from fastkernels.engine.batch_stage import BatchStage
from fastkernels.engine.batching import Packed
from fastkernels.engine.call_graphs import CallGraphs
from fastkernels.engine.machine import device_of, dtype_of
from fastkernels.engine.program import Call, Engine, Program
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model, weights_bytes
from fastkernels.nn.context import use_step
from fastkernels.records import Size


class Encoder:
    """A model that maps packed images to one feature each; `model`, `dtype`, `device`, `overlay`, `config`,
    `size` and `seed` as in LLM. max_batch: images of one launch, whatever their resolutions.

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
        max_batch: int = 64,
        enforce_eager: bool = False,
    ) -> None:
        self.device = device_of(device)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        self.source = find(model, config, size or ("full" if self.device.type == "cuda" else "tiny"))
        self.source.require(("embedding",), "Encoder")
        self.dtype = self.source.dtype(self.device) if dtype == "auto" else dtype_of(dtype)
        self.overlay = overlay or Overlay.over_baseline()
        memory.require_weights_fit(weights_bytes(self.source, self.dtype), self.device)
        self.model: Any = load_model(self.source, self.overlay, self.device, self.dtype, seed)
        self.graphs = CallGraphs(self._compute, self.device, enforce_eager)
        batching = Packed(self.model.patch_size, self.model.num_channels, self.dtype, self.device)
        self.stage = BatchStage(self.graphs, batching, max_batch)
        self.engine = Engine({"encoder": self.stage})

    def encode(self, images: Sequence[Tensor]) -> Tensor:
        """Features [B, D] on the model's device, in the order of the images, which are uint8 [H, W, C] with
        sides that the patch size divides. They may still be under way on the device. Raises RequestError for
        the first image that cannot be served."""
        features = self.engine.run(_encode(image) for image in images)
        for feature in features:
            if isinstance(feature, Exception):
                raise feature
        if not features:
            return torch.empty(0, dtype=self.dtype, device=self.device)
        return torch.stack(features)

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

    def _compute(self, *args: Any) -> Tensor:
        with use_step(None):  # attention plans made for one layer serve all
            return self.model(*args)


def _encode(image: Tensor) -> Program:
    """The program of an image encoder: one need."""
    return (yield Call("encoder", image))
