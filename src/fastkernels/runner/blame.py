"""From a worker's problem to a verdict: what a candidate did wrong, by the phase in which it showed."""

from __future__ import annotations

from typing import Literal

from fastkernels.errors import MachineError
from fastkernels.judge.verdict import Status, Verdict
from fastkernels.measure.room import is_lacking
from fastkernels.runner.pool import WorkerDied, WorkerError, WorkerProblem

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
