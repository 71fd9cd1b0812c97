"""Which processes a crew starts, keeps and ends, with workers that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastkernels.errors import BaselineError
from fastkernels.measure.clocks import SmClock
from fastkernels.runner.kernel_trial import worker_set as crews
from fastkernels.runner.kernel_trial.request import Job
from fastkernels.runner.kernel_trial.worker_set import Crew, Unimportable
from fastkernels.runner.sandbox.isolation import HiddenMemory
from fastkernels.runner.transfer.protocol import ErrorReport
from fastkernels.runner.worker.pool import WorkerError
from fastkernels.runner.worker.worker_calls import Timeouts


class StandInWorker:
    made: list[StandInWorker] = []
    isolation, stays_root, busy, memory = (), "", False, None
    unimportable: Path | None = None  # a source

    def __init__(self, name: str, threads: int, processes: int, source: Path | None, **walls: Any) -> None:
        self.name, self.processes, self.alive = name, processes, True
        self.imported = source is None or source != self.unimportable
        self.walls = [wall for wall in ("namespaces", "user") if walls.get(wall)]
        self.made.append(self)

    def start(self, side: str, **settings: Any) -> dict[str, Any]:
        if not self.imported:
            raise WorkerError(ErrorReport(kind="NameError", message="no", file="a.py", line=3), "")
        self.side, self.settings = side.rpartition(":")[2], settings
        return {"overhead_ns": 0}

    def call(self, do: str, *_: Any, **__: Any) -> dict[str, Any]:
        assert do == "probe"
        return {"byte": crews._PROBE_BYTE}

    def standing(self) -> None: ...

    def close(self) -> None:
        self.alive = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[StandInWorker]:
    """All workers, in the order of their starts."""
    monkeypatch.setattr(crews, "Worker", StandInWorker)
    monkeypatch.setattr(StandInWorker, "made", [])
    return StandInWorker.made


@pytest.fixture
def crew(made: list[StandInWorker], tmp_path: Path):
    with Crew("cpu", 1, Timeouts.of("cpu", 1), SmClock("cpu"), tmp_path, HiddenMemory()) as crew:
        yield crew


JOB = Job("mine")


def test_the_same_workers_serve_groups_of_one_size(crew: Crew, made) -> None:
    first = crew.parties(JOB, 2)
    assert all(one is other for one, other in zip(crew.parties(JOB, 2), first, strict=True))
    assert [worker.name for worker in made] == ["baseline A", "baseline B", "mine"]
    assert all(worker.alive for worker in made)


def test_another_number_of_ranks_ends_all_workers_and_starts_others(crew: Crew, made) -> None:
    crew.parties(JOB)
    for number, ranks in enumerate((2, 3, 1), 1):
        crew.parties(JOB, ranks)
        assert [worker.alive for worker in made] == [False] * 3 * number + [True] * 3
        assert {worker.processes for worker in made[-3:]} == {ranks}


def test_a_group_has_a_side_of_ranks_and_one_rank_has_none(crew: Crew, made) -> None:
    crew.parties(JOB)
    crew.parties(JOB, 2)
    alone = ("KernelSide", {"device": "cpu", "threads": 1})
    group = ("RanksSide", {"device": "cpu", "threads": 1, "ranks": 2})
    assert [(worker.side, worker.settings) for worker in made] == [alone] * 3 + [group] * 3


def test_no_worker_outlives_its_crew(made, tmp_path: Path) -> None:
    with Crew("cpu", 1, Timeouts.of("cpu", 1), SmClock("cpu"), tmp_path, HiddenMemory()) as crew:
        crew.parties(JOB, 2)
    assert [worker.alive for worker in made] == [False] * 3


REVISIONS = Job("revision", source=Path("head"), base_source=Path("base"))


def test_a_head_that_cannot_be_imported_takes_no_walls_from_the_next(crew: Crew, made, monkeypatch) -> None:
    monkeypatch.setattr(StandInWorker, "unimportable", Path("head"))
    with pytest.raises(Unimportable, match=r"NameError: no \(a.py:3\)"):
        crew.parties(REVISIONS)
    tried = [worker.walls for worker in made if worker.name == "revision"]
    assert tried == [["namespaces", "user"], ["user"], []], "a wall may have kept it from its files"
    crew.parties(Job("another", source=Path("other"), base_source=Path("base")))
    assert made[-1].walls == ["namespaces", "user"]


def test_a_base_that_cannot_be_imported_is_an_error(crew: Crew, made, monkeypatch) -> None:
    monkeypatch.setattr(StandInWorker, "unimportable", Path("base"))
    with pytest.raises(BaselineError, match=r"base cannot be imported: NameError: no \(a.py:3\)\. There is"):
        crew.parties(REVISIONS)


@pytest.mark.parametrize("step", ["made", "started"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_whoever_interrupts_leaves_no_worker(
    made, tmp_path: Path, monkeypatch, number: int, step: str
) -> None:
    """While the n-th worker is made, or starts; until then only the crew knows of the others."""
    name = {"made": "__init__", "started": "start"}[step]
    real, count = getattr(StandInWorker, name), iter(range(1, 4))

    def interrupted(self: StandInWorker, *arguments: Any, **settings: Any) -> Any:
        if next(count) == number:
            raise KeyboardInterrupt
        return real(self, *arguments, **settings)

    monkeypatch.setattr(StandInWorker, name, interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        Crew("cpu", 1, Timeouts.of("cpu", 1), SmClock("cpu"), tmp_path, HiddenMemory()) as crew,
    ):
        crew.parties(JOB)
    assert [worker.name for worker in made if worker.alive] == []
