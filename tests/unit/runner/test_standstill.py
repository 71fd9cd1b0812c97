"""Whether a stopped process has left a GPU something to do, and whose work it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastkernels.errors import MachineError
from fastkernels.runner.standstill import Standstill


def looking(*slowdowns: float) -> tuple[Standstill, Any]:
    """At a GPU that reads so; and a worker, which says whether it was ended."""
    left = iter(slowdowns)
    worker = SimpleNamespace(ended=False)
    worker.close = lambda: setattr(worker, "ended", True)
    use: Any = SimpleNamespace(slowdown=lambda: next(left))
    return Standstill(use), worker


def test_a_gpu_that_stands_still_ends_nobody() -> None:
    standstill, worker = looking(1.0, 1.02, 1.049)
    assert [standstill.broken(worker) for _ in range(3)] == [None] * 3
    assert not worker.ended
    assert standstill.disturbed is None


def test_work_that_ends_with_its_process_is_its_own() -> None:
    standstill, worker = looking(1.98, 1.97, 1.99, 1.01, 1.0)
    assert standstill.broken(worker) == (
        "kept a GPU busy (reads of its memory took 1.98 times as long as alone, "
        "and 1.00 once the process had ended)"
    )
    assert worker.ended


def test_work_that_goes_on_is_somebody_elses() -> None:
    standstill, worker = looking(*[1.98] * 5)
    with pytest.raises(MachineError, match=r"a process that is not ours works on this GPU.* 1\.98 times"):
        standstill.broken(worker)


def test_moments_accuse_nobody_but_leave_no_number() -> None:
    standstill, worker = looking(*[1.5, 1.0, 1.0] * 2, *[1.0] * 10)
    assert standstill.broken(worker) is None
    assert standstill.disturbed is None, "one is none"
    assert standstill.broken(worker) is None
    assert standstill.disturbed == (
        "a GPU worked for somebody else in 2 of 2 looks at it, while every process of ours stood still"
    )
    for _ in range(10):
        standstill.broken(worker)
    assert standstill.disturbed is not None, "two of twelve"
    assert not worker.ended


def test_few_moments_of_many_looks_move_no_median() -> None:
    standstill, worker = looking(*[1.5, 1.0, 1.0] * 2, *[1.0] * 18)
    for _ in range(20):
        assert standstill.broken(worker) is None
    assert standstill.disturbed is None
