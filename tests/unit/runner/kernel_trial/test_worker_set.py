"""Which processes a set starts, keeps and ends, with workers that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastkernels.errors import BaselineError
from fastkernels.measure.clocks import SmClock
from fastkernels.runner.kernel_trial import worker_set as worker_set_module
from fastkernels.runner.kernel_trial.request import Job
from fastkernels.runner.kernel_trial.worker_set import Unimportable, WorkerSet
from fastkernels.runner.sandbox.isolation import HiddenMemory
from fastkernels.runner.transfer.protocol import ErrorReport
from fastkernels.runner.worker.pool import WorkerError
from fastkernels.runner.worker.worker_calls import Timeouts


class StandInWorker:
    made: list[StandInWorker] = []
    isolation, stays_root, busy, memory = (), "", False, None
    unimportable: Path | None = None  # a source

    def __init__(self, name: str, threads: int, processes: int, source: Path | None, **level: Any) -> None:
        self.name, self.processes, self.alive = name, processes, True
        self.imported = source is None or source != self.unimportable
        self.level = [wall for wall in ("namespaces", "user") if level.get(wall)]
        self.made.append(self)

    def start(self, side: str, **settings: Any) -> dict[str, Any]:
        if not self.imported:
            raise WorkerError(ErrorReport(kind="NameError", message="no", file="a.py", line=3), "")
        self.side, self.settings = side.rpartition(":")[2], settings
        return {"overhead_ns": 0}

    def call(self, do: str, *_: Any, **__: Any) -> dict[str, Any]:
        assert do == "probe"
        return {"byte": worker_set_module._PROBE_BYTE}

    def standing(self) -> None: ...

    def close(self) -> None:
        self.alive = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[StandInWorker]:
    """All workers, in the order of their starts."""
    monkeypatch.setattr(worker_set_module, "Worker", StandInWorker)
    monkeypatch.setattr(StandInWorker, "made", [])
    return StandInWorker.made


@pytest.fixture
def worker_set(made: list[StandInWorker], tmp_path: Path):
    with WorkerSet("cpu", 1, Timeouts.of("cpu", 1), SmClock("cpu"), tmp_path, HiddenMemory()) as worker_set:
        yield worker_set


JOB = Job("mine")


def test_the_same_workers_serve_groups_of_one_size(worker_set: WorkerSet, made) -> None:
    first = worker_set.handles(JOB, 2)
    assert all(one is other for one, other in zip(worker_set.handles(JOB, 2), first, strict=True))
    assert [worker.name for worker in made] == ["baseline A", "baseline B", "mine"]
    assert all(worker.alive for worker in made)


def test_another_number_of_ranks_ends_all_workers_and_starts_others(worker_set: WorkerSet, made) -> None:
    worker_set.handles(JOB)
    for number, ranks in enumerate((2, 3, 1), 1):
        worker_set.handles(JOB, ranks)
        assert [worker.alive for worker in made] == [False] * 3 * number + [True] * 3
        assert {worker.processes for worker in made[-3:]} == {ranks}


def test_a_group_has_a_side_of_ranks_and_one_rank_has_none(worker_set: WorkerSet, made) -> None:
    worker_set.handles(JOB)
    worker_set.handles(JOB, 2)
    alone = ("KernelSide", {"device": "cpu", "threads": 1})
    group = ("RanksSide", {"device": "cpu", "threads": 1, "ranks": 2})
    assert [(worker.side, worker.settings) for worker in made] == [alone] * 3 + [group] * 3


def test_no_worker_outlives_its_set(made, tmp_path: Path) -> None:
    with WorkerSet("cpu", 1, Timeouts.of("cpu", 1), SmClock("cpu"), tmp_path, HiddenMemory()) as worker_set:
        worker_set.handles(JOB, 2)
    assert [worker.alive for worker in made] == [False] * 3


REVISIONS = Job("revision", source=Path("head"), base_source=Path("base"))


def test_a_head_that_cannot_be_imported_takes_no_level_from_the_next(
    worker_set: WorkerSet, made, monkeypatch
) -> None:
    monkeypatch.setattr(StandInWorker, "unimportable", Path("head"))
    with pytest.raises(Unimportable, match=r"NameError: no \(a.py:3\)"):
        worker_set.handles(REVISIONS)
    tried = [worker.level for worker in made if worker.name == "revision"]
    assert tried == [["namespaces", "user"], ["user"], []], "a wall may have kept it from its files"
    worker_set.handles(Job("another", source=Path("other"), base_source=Path("base")))
    assert made[-1].level == ["namespaces", "user"]


def test_a_base_that_cannot_be_imported_is_an_error(worker_set: WorkerSet, made, monkeypatch) -> None:
    monkeypatch.setattr(StandInWorker, "unimportable", Path("base"))
    with pytest.raises(BaselineError, match=r"base cannot be imported: NameError: no \(a.py:3\)\. There is"):
        worker_set.handles(REVISIONS)


@pytest.mark.parametrize("step", ["made", "started"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_whoever_interrupts_leaves_no_worker(
    made, tmp_path: Path, monkeypatch, number: int, step: str
) -> None:
    """While the n-th worker is made, or starts; until then only the set knows of the others."""
    name = {"made": "__init__", "started": "start"}[step]
    real, count = getattr(StandInWorker, name), iter(range(1, 4))

    def interrupted(self: StandInWorker, *arguments: Any, **settings: Any) -> Any:
        if next(count) == number:
            raise KeyboardInterrupt
        return real(self, *arguments, **settings)

    monkeypatch.setattr(StandInWorker, name, interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        WorkerSet("cpu", 1, Timeouts.of("cpu", 1), SmClock("cpu"), tmp_path, HiddenMemory()) as worker_set,
    ):
        worker_set.handles(JOB)
    assert [worker.name for worker in made if worker.alive] == []
