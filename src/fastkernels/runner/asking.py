"""What is asked of a worker, and what its answers are read as. Problems come as Trouble with their phase."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fastkernels.runner.blame import Phase, Trouble, lost_context
from fastkernels.runner.mapped import NoMemory
from fastkernels.runner.pool import Worker, WorkerDied, WorkerProblem


@dataclass(frozen=True)
class Timeouts:
    """Seconds that each phase may take. `first` holds everything that a kernel compiles on its first call;
    `times_baseline` of the baseline's first call come on top for a candidate."""

    open: float
    build: float
    first: float
    call: float
    times_baseline: float = 100.0

    def first_beside(self, baseline_s: float) -> float:
        """Of a candidate's first call, where the baseline's took so long."""
        return self.first + self.times_baseline * baseline_s

    @classmethod
    def of(cls, device: str, override: float | None) -> Timeouts:
        if override is not None:
            return cls(override, override, override, override, times_baseline=0.0)
        # FlashInfer and FLA compile and tune for up to 90 s on their first call (docs/record/measured.md).
        return cls(open=120, build=120, first=600 if device == "cuda" else 60, call=60)


class Asking:
    """One worker. `ranks`: of a group, of which it is the first: the group ends with any problem."""

    def __init__(self, worker: Worker, timeouts: Timeouts, ranks: int) -> None:
        self.worker, self.timeouts, self._ranks = worker, timeouts, ranks

    def call(self, phase: Phase, timeout_s: float, descriptors: Sequence[int] = (), **arguments: Any) -> dict:
        with self.telling(phase):
            return self.worker.call(phase, timeout_s, descriptors, **arguments)

    def answer(
        self, phase: Phase, kind: type, timeout_s: float, descriptors: Sequence[int] = (), **arguments: Any
    ):
        return self.read(phase, kind, self.call(phase, timeout_s, descriptors, **arguments))

    @contextlib.contextmanager
    def telling(self, phase: Phase) -> Iterator[None]:
        """Problems of the worker in the body, as Trouble with their phase."""
        try:
            yield
        except WorkerProblem as problem:
            # A rank that failed has left its group.
            if lost_context(problem) or self._ranks > 1:
                self.worker.close()
            raise Trouble(phase, problem) from problem

    def read(self, phase: Phase, kind: type, value: Any):
        """The value, or the JSON, as a record."""
        try:
            return kind.model_validate_json(value) if isinstance(value, bytes) else kind.model_validate(value)
        except ValidationError as error:
            raise self.garbled(phase, str(error)) from error

    def reached(self, phase: Phase, move: Callable[[], Any]) -> Any:
        """What `move` returns, where the worker's memory is as it told."""
        try:
            return move()
        except NoMemory as error:
            raise self.garbled(phase, str(error)) from error

    def garbled(self, phase: Phase, why: str) -> Trouble:
        """Whoever answers so is not asked again."""
        printed = self.worker.scratch.printed()
        self.worker.close()
        message = f"{self.worker.name}: garbled answer to '{phase}': {why}"
        return Trouble(phase, WorkerDied("CRASHED", message, printed))
