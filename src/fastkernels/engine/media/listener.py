"""The encoder of a model that listens: audio clips to the states that its decoder attends to.

A request of such a model is a call of this stage, then tokens (loop.language_model). Its decoder computes
keys and values from the states when the request takes a row, and keeps them there as a State.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastkernels.engine.core.ledger import Ledger
from fastkernels.engine.programs.batch_stage import BatchStage
from fastkernels.engine.programs.call_graphs import CallGraphs
from fastkernels.engine.programs.program import Stage, Tokens
from fastkernels.errors import RequestError
from fastkernels.nn.audio import Clips
from fastkernels.nn.context import in_a_step
from fastkernels.nn.program import Call

# Clips of one launch: 24,000 states of 30 s each fill a GPU, and their activations stay below a gigabyte.
MAX_BATCH = 16
ENCODER = "encoder"


@dataclass(frozen=True, slots=True)
class Clip:
    """Audio whose states the request attends to."""

    audio: Tensor
    shift = 0

    @property
    def calls(self) -> list[Call]:
        return [Call(ENCODER, self.audio)]

    def added(self, need: Tokens, results: list[Any]) -> Tokens:
        return replace(need, source=results[0])


class Listener:
    """`model` has `encode(audio float32 [B, N]) -> [B, S, D]`, and `encoder.num_samples`, its N, of which
    `encoder.sampling_rate` are a second."""

    def __init__(self, model: Any, device: torch.device, enforce_eager: bool) -> None:
        self._device = device
        self._clips = Clips(model.encoder.num_samples, model.encoder.sampling_rate, device)
        self.graphs = {ENCODER: CallGraphs(in_a_step(model.encode), device, enforce_eager)}

    def stages(self, ledger: Ledger) -> dict[str, Stage]:
        """Encodes while few requests wait for a row: states of many would fill the memory."""

        def has_room() -> bool:
            return len(ledger.waiting) < MAX_BATCH

        return {ENCODER: BatchStage(self.graphs[ENCODER], self._clips, MAX_BATCH, has_room)}

    @torch.inference_mode()
    def largest(self) -> Tensor:
        """The largest launch, on silence."""
        return self.graphs[ENCODER].function(
            torch.zeros(MAX_BATCH, self._clips.num_samples, device=self._device)
        )

    def take(self, ids: list[int], given: Any) -> tuple[list[int], Clip]:
        """The clip of a prompt, {"prompt_token_ids": ..., "multi_modal_data": {"audio": samples}}."""
        if given is None:
            raise RequestError(
                "this model needs audio: {'prompt_token_ids': ..., 'multi_modal_data': {'audio': samples}}"
            )
        if not isinstance(given, Mapping) or list(given) != ["audio"]:
            raise RequestError(f"multi_modal_data must be {{'audio': samples}}, not {given!r:.60}")
        return ids, Clip(self._clips.clip(given["audio"]))

    def stats(self) -> dict[str, Any]:
        return {ENCODER: self.graphs[ENCODER].stats()}
