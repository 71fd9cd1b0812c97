"""The encoder of a model that listens: audio clips to the states that its decoder attends to.

A request of such a model is a call of this stage, then tokens (loop.language_model). Its decoder computes
keys and values from the states when the request takes a row, and keeps them there as a State.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastkernels.engine.core.ledger import Ledger
from fastkernels.engine.media.audio import Clips
from fastkernels.engine.programs.batch_stage import BatchStage
from fastkernels.engine.programs.call_graphs import CallGraphs
from fastkernels.nn.context import use_step

# Clips of one launch: 24,000 states of 30 s each fill a GPU, and their activations stay below a gigabyte.
MAX_BATCH = 16


class Listener:
    """`model` has `encode(audio float32 [B, N]) -> [B, S, D]`, and `encoder.num_samples`, its N, of which
    `encoder.sampling_rate` are a second."""

    def __init__(self, model: Any, device: torch.device, enforce_eager: bool) -> None:
        self._model, self._device = model, device
        self.clips = Clips(model.encoder.num_samples, model.encoder.sampling_rate, device)
        self.graphs = CallGraphs(self._encode, device, enforce_eager)

    def stage(self, ledger: Ledger) -> BatchStage:
        """Encodes while few requests wait for a row: states of many would fill the memory."""
        return BatchStage(self.graphs, self.clips, MAX_BATCH, lambda: len(ledger.waiting) < MAX_BATCH)

    @torch.inference_mode()
    def largest(self) -> Tensor:
        """The largest launch, on silence."""
        return self._encode(torch.zeros(MAX_BATCH, self.clips.num_samples, device=self._device))

    def _encode(self, audio_BN: Tensor) -> Tensor:
        with use_step(None):  # attention plans made for one layer serve all
            return self._model.encode(audio_BN)
