"""What is asked of a worker, what its answers are read as, and the verdict on a problem.

A side of a kernel (inside/kernel_side.py) answers with these fields and no others. A problem comes as Trouble
with the phase in which it showed, which says what a candidate did wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from fastkernels.errors import MachineError
from fastkernels.judge.verdict import Status, Verdict
from fastkernels.measure.room import is_lacking
from fastkernels.records import Printable, Record
from fastkernels.runner.inside.results import Result
from fastkernels.runner.transfer.gpu_arguments import NoMemory, Shown
from fastkernels.runner.worker.pool import Worker, WorkerDied, WorkerError, WorkerProblem

Phase = Literal[
    "open",
    "build",
    "attach",
    "first",
    "boxes",
    "capture",
    "settle",
    "prepare",
    "go",
    "inspect",
    "again",
    "compiled",
    "launched",
]

_COMPILE_KINDS = {
    # Triton; its launcher finds too much shared memory only when it has compiled
    "CompilationError",
    "CompileTimeAssertionFailure",
    "UnsupportedLanguageConstruct",
    "OutOfResources",
    "PTXASError",
    # torch.compile and extensions
    "BackendCompilerFailed",
    "InductorError",
    "LoweringException",
    "CppCompileError",
    "CUDACompileError",
    "CalledProcessError",
}
_COMPILE_WORDS = ("error building extension", "ninja: build stopped", "nvrtc", "ptxas")


class Trouble(Exception):
    """A worker's problem with the phase in which it came."""

    def __init__(self, phase: Phase, problem: WorkerProblem) -> None:
        self.phase, self.problem = phase, problem
        super().__init__(f"{phase}: {problem}")


def verdict_of(trouble: Trouble, forced: bool = False) -> Verdict:
    """The candidate's verdict. `forced`: an implementation by name, which may decline a case."""
    return Verdict.failed(_status(trouble, forced), trouble.problem.failure)


def lost_context(problem: WorkerProblem) -> bool:
    """Whether the process lives on with a device context that answers every further call with an error. In a
    worker a MachineError is the driver's (measure/cuda.py): of a lost context, or of something as bad."""
    if not isinstance(problem, WorkerError):
        return False
    return (
        problem.kind in ("AcceleratorError", "MachineError")
        or "cuda error" in problem.failure.message.lower()
    )


def baseline_verdict(trouble: Trouble) -> Verdict:
    """The same problem in a baseline worker: nothing can be judged. Raises MachineError where it found no
    memory."""
    problem, failure = trouble.problem, trouble.problem.failure
    message = f"the baseline failed in '{trouble.phase}': {failure.message}"
    if isinstance(problem, WorkerError) and is_lacking(problem.kind, failure.message):
        raise MachineError(message)
    return Verdict.failed("INVALID_BASELINE", failure.model_copy(update={"message": message}))


def _status(trouble: Trouble, forced: bool) -> Status:
    problem = trouble.problem
    if isinstance(problem, WorkerDied):
        return problem.status
    assert isinstance(problem, WorkerError)
    kind, message = problem.kind, problem.failure.message.lower()
    if is_lacking(kind, message):
        return "OOM"
    if kind in _COMPILE_KINDS or any(words in message for words in _COMPILE_WORDS):
        return "COMPILE_ERROR"
    if kind == "KernelError" and forced:
        return "UNSUPPORTED"
    if kind == "SignatureMismatch":
        return "SIGNATURE_MISMATCH"
    return "IMPORT_ERROR" if trouble.phase == "open" else "CRASHED"


MOST_NS = 10**15  # eleven days: a duration beyond is garbage


class _Answer(Record):
    """What a worker says; anything else is a crashed worker."""


class Built(_Answer):
    prepares: bool
    put_back: tuple[Printable, ...] = ()


class First(_Answer):
    outputs: dict[str, Result]
    kernels: dict[str, str]
    put_back: tuple[Printable, ...] = ()


class Captured(_Answer):
    """`outputs`: what each link of the chain returns; `shown`: where, of a chain that is captured."""

    captured: bool
    detail: Printable
    kernels: dict[str, str]
    outputs: list[dict[str, Result]]
    shown: Shown | None


class Timed(_Answer):
    ns: int = Field(gt=0, lt=MOST_NS)


class Inspected(_Answer):
    """`outputs`: of the call, or of every rank's; none of a chain, described when it was captured."""

    outputs: list[dict[str, Result]]
    threads: int
    flags: dict[str, str]


class Compiled(_Answer):
    status: str = Field(pattern="^(ok|graph break|error)$")
    detail: Printable
    traces: int = Field(ge=0)


class Launch(_Answer):
    name: Printable
    ns: int = Field(ge=0, lt=MOST_NS)


class Launches(_Answer):
    kernels: list[Launch]


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


class WorkerCalls:
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
