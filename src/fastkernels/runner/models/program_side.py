"""One side of a trial of a model that answers with named outputs. `answer` says a digest of every answer: the
judge times it with its own clock and asks afterwards for those that it wants to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.engine.model import Model
from fastkernels.runner.models.model_side import ModelSide
from fastkernels.runner.transfer.arrays import digest, packed, taken


class ProgramSide(ModelSide):
    def __init__(self, layers: Sequence[str], model: str, noise: Sequence[str] = (), **engine: Any) -> None:
        super().__init__(layers, noise)
        self.face = Model(model, overlay=self.overlay, **engine)
        self.model: Any = self.face.model
        self.device = self.face.device
        self._answers: list[dict[str, np.ndarray]] = []

    def answer(
        self, start: int, requests: Sequence[Mapping[str, Any]], descriptors: Sequence[int]
    ) -> dict[str, Any]:
        """A batch of requests, the first of which is number `start` of a run. The answers are fetched and
        stay here until `outputs`."""
        del self._answers[start:]
        found = _fetched(self.face.run(_tensors(requests, descriptors)))
        self._answers += found
        return {"digests": [digest(answer) for answer in found]}

    def outputs(self, chosen: list[int]) -> dict[str, Any]:
        return _packed([self._answers[i] for i in chosen])

    def finished(self, requests: Sequence[Mapping[str, Any]], descriptors: Sequence[int]) -> dict[str, Any]:
        """What the model's `finish` makes of outputs, which are handed over before their request."""
        outputs, request = _tensors(requests, descriptors)
        return _packed(_fetched(self.face.finish([outputs], [request])))

    def eager(self) -> AbstractContextManager[None]:
        return self.face.eager()

    def run_once(self, requests: Sequence[Mapping[str, Any]], descriptors: Sequence[int]) -> None:
        """To the end: modules of what is not timed are reached too."""
        asked = _tensors(requests, descriptors)
        outputs = self.face.run(asked)
        if hasattr(self.model, "finish"):
            outputs = self.face.finish(outputs, asked)
        _fetched(outputs)

    def engine_stats(self) -> dict[str, Any]:
        return self.face.stats()


def _tensors(requests: Sequence[Mapping[str, Any]], descriptors: Sequence[int]) -> list[dict[str, Any]]:
    """What was handed over, not copied: a batch of images is megabytes, and the clock runs."""
    return [
        {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in request.items()}
        for request in taken(requests, descriptors)
    ]


def _fetched(answers: Sequence[Mapping[str, Tensor]]) -> list[dict[str, np.ndarray]]:
    """On the host; outputs of one shape cross together."""
    columns = {name: _column([answer[name] for answer in answers]) for name in answers[0]}
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _column(values: list[Tensor]) -> Sequence[np.ndarray]:
    if len({value.shape for value in values}) == 1:
        return _host(torch.stack(values))
    return [_host(value) for value in values]


def _host(value: Tensor) -> Any:
    return (value.float() if value.is_floating_point() else value.long()).cpu().numpy()


def _packed(answers: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    return {"answers": [{name: packed(array) for name, array in one.items()} for one in answers]}
