"""Whose fault it is that a device has no memory left."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastkernels.errors import MachineError
from fastkernels.judge.verdict import Verdict
from fastkernels.records import Failure
from fastkernels.runner.kernel_trial import oom_blame

GB = 10**9


class Device:
    def __init__(self, free: int, total: int = 80 * GB) -> None:
        self.free, self.total = free, total


class Worker:
    """Gives back what it holds when it ends."""

    def __init__(self, device: Device, held: int) -> None:
        self._device, self._held, self.alive = device, held, True

    def close(self) -> None:
        self._device.free += self._held
        self._held, self.alive = 0, False


def failed(status: Any, message: str = "CUDA out of memory. Tried to allocate 2.00 GiB") -> Verdict:
    return Verdict.failed(status, Failure(message=message))


def settled(monkeypatch, verdict: Verdict, theirs: int, free: int = 0) -> tuple[Verdict, list[Any]]:
    """Beside two baselines of 6 and 8 GB; and the processes."""
    device = Device(free)
    workers: list[Any] = [Worker(device, held) for held in (theirs, 6 * GB, 8 * GB)]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (device.free, device.total))
    return oom_blame.settled(verdict, workers[0], workers[1:], range(1)), workers


def test_who_has_taken_the_memory_is_told(monkeypatch) -> None:
    verdict, workers = settled(monkeypatch, failed("INVALID_BASELINE"), theirs=40 * GB)
    assert verdict.label == "OOM"
    assert verdict.failure is not None
    assert "kept 40.0 GB of the device's memory (the baseline's 8.0)" in verdict.failure.message
    assert not any(worker.alive for worker in workers)


def test_who_holds_little_more_than_the_baseline_is_not(monkeypatch) -> None:
    before = failed("INVALID_BASELINE")
    verdict, _ = settled(monkeypatch, before, theirs=13 * GB)
    assert verdict is before


def test_the_first_to_learn_of_a_case_too_large_is_not_to_blame(monkeypatch) -> None:
    verdict, _ = settled(monkeypatch, failed("OOM"), theirs=8 * GB, free=GB)
    assert verdict.label == "INVALID_BASELINE"
    assert verdict.failure is not None
    assert verdict.failure.message.startswith("this machine cannot judge the case: CUDA out of memory")


def test_who_asks_for_more_than_there_is_ran_out_of_memory(monkeypatch) -> None:
    before = failed("OOM")
    verdict, workers = settled(monkeypatch, before, theirs=8 * GB, free=40 * GB)
    assert verdict is before
    assert all(worker.alive for worker in workers)


def test_of_another_failure_nobody_is_ended(monkeypatch) -> None:
    before = failed("INVALID_BASELINE", "the baseline differs from the oracle of an exact task")
    verdict, workers = settled(monkeypatch, before, theirs=40 * GB)
    assert verdict is before
    assert all(worker.alive for worker in workers)


@pytest.mark.parametrize(
    "error",
    [
        MachineError("reads take long. If somebody works there, run elsewhere"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has ..."),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        MemoryError(),
    ],
)
def test_what_the_machine_lacks_is_no_error_of_the_judge(error: Exception) -> None:
    verdict = oom_blame.unjudged(error)
    assert verdict is not None
    assert verdict.label == "INVALID_BASELINE"


def test_an_error_of_the_judge_is_none_of_the_machine() -> None:
    assert oom_blame.unjudged(RuntimeError("shapes do not match")) is None


def test_advice_stays_and_lists_of_processes_do_not() -> None:
    kept = oom_blame.unjudged(MachineError("no memory. Run elsewhere"))
    cut = oom_blame.unjudged(torch.OutOfMemoryError("CUDA out of memory. GPU 0 has a total capacity"))
    assert kept is not None
    assert cut is not None
    assert kept.failure is not None
    assert cut.failure is not None
    assert kept.failure.message.endswith("no memory. Run elsewhere")
    assert cut.failure.message.endswith(": CUDA out of memory")
