"""Whether a stopped process has left a GPU something to do, and whose work it is."""

from __future__ import annotations

from typing import Any

import pytest

from fastkernels.errors import MachineError
from fastkernels.runner.worker import gpu_idle_check
from fastkernels.runner.worker.gpu_idle_check import GpuIdleCheck


class Use:
    """A GPU that reads so, one look after another, and the last from then on."""

    def __init__(self, *slowdowns: float) -> None:
        self.left = list(slowdowns)

    def begin(self) -> None:
        self.left = [1.0]

    def slowdown(self) -> float:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


class Worker:
    def __init__(self, use: Use, then: float = 1.0) -> None:
        self._use, self._then, self.ended = use, then, False

    def close(self) -> None:
        self._use.left, self.ended = [self._then], True


def looking(*slowdowns: float, then: float = 1.0) -> tuple[GpuIdleCheck, Any]:
    """And a worker, with whose end it reads `then`."""
    use: Any = Use(*slowdowns)
    return GpuIdleCheck(use), Worker(use, then)


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(gpu_idle_check, "_ENDS_S", 0.05)


def test_a_gpu_that_stands_still_ends_nobody() -> None:
    looks, worker = looking(1.0, 1.02, 1.029)
    assert [looks.broken(worker) for _ in range(3)] == [None] * 3
    assert not worker.ended
    assert looks.disturbed is None


def test_work_that_ends_with_its_process_is_its_own() -> None:
    looks, worker = looking(1.98)
    assert looks.broken(worker) == (
        "kept a GPU busy (reads of its memory took 1.98 times as long as alone, for 0.05 s, "
        "and 1.00 once the process had ended)"
    )
    assert worker.ended


def test_work_that_goes_on_is_somebody_elses() -> None:
    looks, worker = looking(1.98, then=1.97)
    with pytest.raises(MachineError, match=r"take 1\.97 times as long .* no process of ours is the cause"):
        looks.broken(worker)
    assert looks.broken(worker) is None, "from then on that is what reads take"


def test_moments_accuse_nobody_but_leave_no_number() -> None:
    looks, worker = looking(1.5, 1.3, 1.0, 1.5, 1.0)
    assert looks.broken(worker) is None
    assert looks.disturbed is None, "one is none"
    assert looks.broken(worker) is None
    assert looks.disturbed == (
        "a GPU worked for somebody else in 2 of 2 looks at it, while every process of ours stood still"
    )
    for _ in range(10):
        looks.broken(worker)
    assert looks.disturbed is not None, "two of twelve"
    for _ in range(8):
        looks.broken(worker)
    assert looks.disturbed is None, "of twenty they move no median"
    assert looks.looks == (2, 20)
    assert not worker.ended


def test_what_ends_by_itself_in_the_time_in_which_it_would_have_to_end_with_the_process() -> None:
    """Seen of an honest self-test: reads took 1.32 times as long for more than 20 ms, as while the driver
    clears memory."""
    looks, worker = looking(*[1.32] * 50, 1.0)
    assert looks.broken(worker) is None
    assert not worker.ended


def test_what_the_driver_clears_is_waited_for_and_not_counted() -> None:
    looks, worker = looking(1.3, 1.3, 1.0)
    looks.wait()  # three looks, within its time
    assert looks.broken(worker) is None
    assert looks.disturbed is None
