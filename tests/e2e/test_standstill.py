"""Whole trials on a device that is busy while every process stands still: here a pretended one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from fastkernels.records import KernelRow
from fastkernels.runner.kernel_trial import run
from fastkernels.runner.kernel_trial.block_runner import BlockRunner
from fastkernels.runner.kernel_trial.request import KernelsRequest
from fastkernels.runner.worker import gpu_idle_check

pytestmark = pytest.mark.slow

# Reads beside a line-up whose candidate had the last turn, or had not.
Reads = Callable[[BlockRunner, bool], float]


class Use:
    """A GPU that reads as this says, in the first look before a turn, or in all looks there."""

    def __init__(self, reads: Reads, lasts: bool) -> None:
        self._reads, self._lasts = reads, lasts
        self.runner: Any = None

    def coming(self, runner: BlockRunner) -> None:
        self.runner, self._first = runner, True

    def slowdown(self) -> float:
        if self.runner is None or not (self._first or self._lasts):
            return 1.0
        self._first = False
        return self._reads(self.runner, self.runner._last is self.runner.c)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Reads, bool], KernelRow]:
    monkeypatch.setattr(gpu_idle_check, "_ENDS_S", 0.1)

    def judge(reads: Reads, lasts: bool = False) -> KernelRow:
        use, bench, left_busy = Use(reads, lasts), run._Run._bench, BlockRunner._left_busy

        def looks(runner: BlockRunner, coming: Any) -> Any:
            use.coming(runner)
            return left_busy(runner, coming)

        monkeypatch.setattr(BlockRunner, "_left_busy", looks)
        monkeypatch.setattr(run._Run, "_bench", lambda *args: dataclasses.replace(bench(*args), sole_use=use))
        request = KernelsRequest(
            targets=("rms_norm",),
            case_glob="llama-tiny-T16-D64-f32",
            device="cpu",
            size="tiny",
            self_test=True,
            budget_s=0.5,
            compile_check=False,
        )
        (row,) = run.run_kernels(request.resolved(), lambda progress: None).rows
        return row

    return judge


def test_a_device_that_stands_still_is_looked_at_and_nothing_said(judged) -> None:
    row = judged(lambda runner, behind: 1.01)
    assert row.verdict in ("PASSED", "UNSTABLE"), row.failure
    assert row.verdict == "PASSED" or "while every process" not in row.failure.message
    busy, looks = row.integrity.looks
    assert (busy, looks > 5) == (0, True)


def test_who_leaves_it_something_in_every_turn_has_no_number(judged) -> None:
    row = judged(lambda runner, behind: 1.98 if behind else 1.0)
    assert row.verdict == "UNSTABLE"
    told = row.failure.message  # a busy machine may have said before that it knows no ratio
    assert "looks at it, while every process of ours stood still" in told or "interval is still" in told
    busy, looks = row.integrity.looks
    assert busy > 0.3 * looks


def test_who_leaves_it_something_that_ends_with_him_is_told(judged) -> None:
    row = judged(lambda runner, behind: 1.98 if runner.c.worker.alive else 1.0, lasts=True)
    assert row.verdict == "TAMPERED(pause)"
    assert "1.98 times as long as alone, for 0.1 s, and 1.00 once" in row.failure.message
