"""The two engines of a whole-model trial, each in a process of its own; one works while the other stands
still.

Where two engines fit the device together, both stay alive and are paused between their turns; with the
candidate the GPU must stand still as well (worker/gpu_idle_check.py). Where they do not fit (`exclusive`), a
side is closed before the other starts: every turn loads its weights again, and is a process that has to be
warmed up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastkernels.records import Failure, Size
from fastkernels.runner.sandbox.isolation import common
from fastkernels.runner.worker.gpu_idle_check import GpuIdleCheck
from fastkernels.runner.worker.isolation_levels import NONE, with_device
from fastkernels.runner.worker.pool import Worker, WorkerError, WorkerProblem
from fastkernels.runner.worker.resources import default_threads

Side = Literal["baseline", "candidate"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a side may take to start and to answer a call."""

    start: float
    call: float

    @classmethod
    def of(cls, size: Size, override: float | None = None) -> Timeouts:
        if override is not None:
            return cls(override, override)
        # Tiny: workloads of seconds, and minutes for kernels that compile on first use. Full: 16 GB of
        # weights; the longest workload, many times slower than any engine should be.
        return cls(start=300, call=300) if size == "tiny" else cls(start=600, call=1200)


class SideFailure(Exception):
    """One side could not answer; the value that a user needs is `failure`. `error`: the name and the words of
    the exception, where it was one."""

    def __init__(self, side: Side, failure: Failure, error: tuple[str, str] | None = None) -> None:
        self.side, self.failure, self.error = side, failure, error
        super().__init__(failure.message)


class SideHandle:
    """A started side: `call` is a method of a runner.model_side.ModelSide. warmed: what this process has
    done, for whoever times it."""

    def __init__(self, side: Side, worker: Worker, timeout_s: float) -> None:
        self.side: Side = side
        self.worker = worker
        self.warmed: set[str] = set()
        self._timeout_s = timeout_s

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        with _as_side_failure(self.side):
            answer = self.worker.call(do, self._timeout_s, **arguments)
        self._require_rest(self.worker.restless)
        return answer

    def pause(self, idle_check: GpuIdleCheck | None = None) -> None:
        """It and all that it started stand still until its next call, on GPUs as well if somebody looks."""
        self.worker.pause(looks=True)
        self._require_rest(self.worker.restless)
        if idle_check is not None:
            self._require_rest(idle_check.broken(self.worker))

    def _require_rest(self, how: str | None) -> None:
        if how:
            message = (
                f"TAMPERED(pause): the process {how} while it was stopped and the other side had its turn"
            )
            raise SideFailure(self.side, Failure(message=message))


class Sides:
    """`kind`: the sides' class, `module:Class`; `layers`: candidate layers of each side (empty for the
    baseline); `engine`: arguments of both engines; `reads`: what both read besides; `idle_check`: of GPUs
    while the candidate is stopped."""

    def __init__(
        self,
        kind: str,
        layers: dict[Side, Sequence[Path]],
        engine: dict[str, Any],
        exclusive: bool,
        shared_caches: Path,
        timeouts: Timeouts,
        reads: Sequence[Path] = (),
        idle_check: GpuIdleCheck | None = None,
    ) -> None:
        self._kind, self._timeouts = kind, timeouts
        self._layers, self._engine, self.exclusive = layers, engine, exclusive
        self._shared_caches, self._reads = shared_caches, reads
        self._idle_check = idle_check
        self._alive: dict[Side, SideHandle] = {}
        self.isolation: tuple[str, ...] | None = None  # of every candidate process so far
        self.stays_root = ""
        self.put_back: tuple[str, ...] = ()  # settings that its imports or first call had changed

    def use(self, side: Side) -> SideHandle:
        """The side, alive and the only one that runs."""
        others: list[Side] = [alive for alive in self._alive if alive != side]
        for other in others:
            if self.exclusive:
                self._alive.pop(other).worker.close()
            else:
                self._alive[other].pause(self._idle_check if other == "candidate" else None)
        if side not in self._alive:
            self._alive[side] = self._start(side, {})
        return self._alive[side]

    @contextlib.contextmanager
    def fresh(self, **changes: Any) -> Iterator[SideHandle]:
        """A new baseline process with other engine arguments, for the body."""
        handle = self._start("baseline", changes)
        try:
            yield handle
        finally:
            handle.worker.close()

    def note_put_back(self, names: Sequence[str]) -> None:
        self.put_back = tuple(dict.fromkeys((*self.put_back, *names)))

    def close(self) -> None:
        while self._alive:
            self._alive.popitem()[1].worker.close()

    def _start(self, side: Side, changes: dict[str, Any]) -> SideHandle:
        ours = not self._layers[side]
        level = NONE if ours else with_device(self._engine["device"])
        worker = Worker(
            side,
            default_threads(),
            shared_caches=self._shared_caches if ours else None,
            reads=(*self._layers[side], *self._reads),
            on_cpu=self._engine["device"] == "cpu",
            **level._asdict(),
        )
        try:
            with _as_side_failure(side):
                worker.start(
                    self._kind,
                    self._timeouts.start,
                    layers=[str(layer) for layer in self._layers[side]],
                    **{**self._engine, **changes},
                )
        except BaseException:
            worker.close()
            raise
        if side == "candidate":  # noise runs of the baseline come later, and are not separated as far
            self.isolation = common(self.isolation, worker.isolation)
            self.stays_root = self.stays_root or worker.stays_root
            self.note_put_back(worker.put_back)
        return SideHandle(side, worker, self._timeouts.call)


@contextlib.contextmanager
def _as_side_failure(side: Side) -> Iterator[None]:
    try:
        yield
    except WorkerProblem as problem:
        error = (problem.kind, problem.said) if isinstance(problem, WorkerError) else None
        raise SideFailure(side, problem.failure, error) from problem
