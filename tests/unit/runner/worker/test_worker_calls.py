"""From a worker's problem to the candidate's verdict."""

import pytest

from fastkernels.errors import MachineError
from fastkernels.runner.transfer.protocol import ErrorReport
from fastkernels.runner.worker.pool import WorkerDied, WorkerError
from fastkernels.runner.worker.worker_calls import Trouble, baseline_verdict, lost_context, verdict_of


def raised(kind: str, message: str = "message") -> WorkerError:
    return WorkerError(
        ErrorReport(kind=kind, message=message, file="a.py", line=3, traceback="tb"), "printed"
    )


@pytest.mark.parametrize(
    ("phase", "kind", "message", "expected"),
    [
        ("open", "SyntaxError", "invalid syntax", "IMPORT_ERROR"),
        ("open", "ValueError", "at import", "IMPORT_ERROR"),
        ("open", "SystemExit", "0", "IMPORT_ERROR"),
        ("build", "SignatureMismatch", "lacks weight", "SIGNATURE_MISMATCH"),
        ("attach", "SignatureMismatch", "lacks weight", "SIGNATURE_MISMATCH"),
        ("build", "ValueError", "bad size", "CRASHED"),
        ("first", "ValueError", "no such tile", "CRASHED"),
        ("first", "CompilationError", "at 3:4", "COMPILE_ERROR"),
        ("first", "RuntimeError", "Error building extension 'x'", "COMPILE_ERROR"),
        ("go", "OutOfResources", "out of resource: shared memory", "COMPILE_ERROR"),
        ("first", "OutOfMemoryError", "CUDA out of memory", "OOM"),
        ("first", "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried", "OOM"),
        ("go", "MemoryError", "", "OOM"),
        ("first", "KernelError", "needs cuda", "CRASHED"),
        ("go", "RuntimeError", "illegal memory access", "CRASHED"),
    ],
)
def test_the_phase_and_the_exception_give_the_verdict(phase, kind, message, expected) -> None:
    verdict = verdict_of(Trouble(phase, raised(kind, message)))
    assert verdict.label == expected
    assert (verdict.failure.file, verdict.failure.line) == ("a.py", 3)
    assert verdict.failure.output == "tb\nprinted"


def test_an_implementation_by_name_may_say_that_it_cannot() -> None:
    assert verdict_of(Trouble("first", raised("KernelError")), forced=True).label == "UNSUPPORTED"


def test_a_lost_device_context_is_recognised() -> None:
    assert lost_context(raised("AcceleratorError"))
    assert lost_context(raised("MachineError", "cuCtxSynchronize: an illegal memory access (700)"))
    assert lost_context(raised("RuntimeError", "CUDA error: an illegal memory access was encountered"))
    assert not lost_context(raised("RuntimeError", "shapes differ"))
    assert not lost_context(WorkerDied("CRASHED", "CUDA error", ""))


@pytest.mark.parametrize("status", ["CRASHED", "TIMEOUT"])
def test_a_dead_worker_keeps_its_status_in_every_phase(status) -> None:
    assert verdict_of(Trouble("open", WorkerDied(status, "gone", ""))).label == status


def test_a_baseline_that_finds_no_memory_is_the_machines_fault() -> None:
    with pytest.raises(MachineError, match="failed in 'capture': AcceleratorError: CUDA"):
        baseline_verdict(Trouble("capture", raised("AcceleratorError", "CUDA error: out of memory")))


def test_the_baselines_problem_is_nobodys_failure_but_the_machines() -> None:
    verdict = baseline_verdict(Trouble("first", raised("ValueError")))
    assert verdict.label == "INVALID_BASELINE"
    assert verdict.failure.message.startswith("the baseline failed in 'first': ValueError")


def test_triton_without_a_gpu_says_what_to_do() -> None:
    trouble = Trouble("first", raised("RuntimeError", "0 active drivers ([]). There should only be one."))
    found = verdict_of(trouble)
    assert found.status == "CRASHED"
    assert found.failure is not None
    assert "should only be one. Triton finds no GPU here. With TRITON_INTERPRET=1" in found.failure.message
