"""Rounds of looking and timing: what is lost, left out, resumed, kept. Processes are played here."""

from dataclasses import dataclass, field

import pytest

from fastkernels.errors import UsageError
from fastkernels.measure.chain import ChainPlan
from fastkernels.records import Case, TunedRow, TuneReport, Untimed
from fastkernels.runner.tuning import run
from fastkernels.runner.tuning.lane import Failed, Lost
from fastkernels.runner.tuning.look import Called, Looked
from fastkernels.runner.tuning.plan import TuneRequest
from fastkernels.runner.tuning.stopwatch import Timed

REQUEST = TuneRequest(device="cpu", targets=("rms_norm",), architectures=("llama",), processes=2)
LOST = Lost("rms_norm", "slow", "its first call takes longer than 20 s")


@dataclass
class Played:
    """What lanes answer to a look and to a timing; None: as asked. `asked` has both."""

    look: list = field(default_factory=list)
    time: list = field(default_factory=list)
    asked: list = field(default_factory=list)


@pytest.fixture
def played(monkeypatch) -> Played:
    script = Played()

    class PlayedLane:
        connection = None

        def __init__(self, device: str, threads: int) -> None:
            self._answer = None

        def look(self, case: Case, skip: frozenset, is_alone: bool) -> None:
            script.asked.append(("look", case.id, skip, is_alone))
            names = [name for name in ("torch", "slow") if ("rms_norm", name) not in skip]
            called = Called("rms_norm", 8, "float32", "torch", dict.fromkeys(names, 0.0))
            self._answer = (script.look and script.look.pop(0)) or Looked(ChainPlan(), (called,), ())

        def time(self, case: Case, looked: Looked, budget_s: float) -> None:
            served = looked.called[0].served
            script.asked.append(("time", case.id, tuple(served)))
            rows = tuple(
                TunedRow(
                    task=case.task, case=case.id, kernel="rms_norm", implementation=name, us=10.0,
                    chosen=name == "torch", contract="host", size=8, dtype="float32", noise_pct=0.1,
                    difference=0.0,
                )
                for name in served
            )  # fmt: skip
            answer = script.time.pop(0) if script.time else None
            if isinstance(answer, BaseException):
                raise answer
            self._answer = answer or Timed(rows, ())

        def answer(self, limit_s: float):
            return self._answer

        def close(self) -> None:
            script.asked.append(("close",))

    monkeypatch.setattr(run, "Lane", PlayedLane)
    return script


def timed(report: TuneReport) -> set[str]:
    return {row.case for row in report.rows}


def test_all_cases_are_looked_at_and_timed_in_the_order_of_the_plan(played) -> None:
    kept: list[TuneReport] = []
    report = run.run_tuning(REQUEST, keep=kept.append)
    looks, times = ([one[1] for one in played.asked if one[0] == kind] for kind in ("look", "time"))
    assert looks == times
    assert timed(report) == set(times)
    assert report.complete
    assert report.summary.timed == report.summary.planned == len(times)
    assert not report.summary.left
    assert [len(timed(one)) for one in kept] == [*range(len(times)), len(times)], "after every case"
    assert played.asked.count(("close",)) == 2


def test_an_implementation_that_takes_too_long_is_left_out_and_the_case_is_timed(played) -> None:
    played.look = [LOST]
    report = run.run_tuning(REQUEST)
    first = played.asked[0][1]
    assert timed(report) == {one[1] for one in played.asked if one[0] == "time"}
    assert [(u.case, u.implementation, u.why) for u in report.untimed] == [(first, "slow", LOST.why)]
    assert ("time", first, ("torch",)) in played.asked


def test_what_was_lost_twice_is_not_tried_again(played) -> None:
    played.look = [LOST, LOST]
    report = run.run_tuning(REQUEST)
    cases = timed(report)
    assert len(cases) > 2
    assert {u.case for u in report.untimed} == cases
    assert sum(u.why == LOST.why for u in report.untimed) == 2
    assert all(row.implementation == "torch" for row in report.rows)


def test_a_case_that_ends_processes_or_fails_is_left_out(played) -> None:
    nowhere = Lost("", "", "its process ended with exit code 1")
    played.look = [nowhere, Failed("ValueError: no room", lacks_memory=False), nowhere]
    report = run.run_tuning(REQUEST)
    whole = {u.why for u in report.untimed if u.implementation is None}
    assert whole == {nowhere.why, "ValueError: no room"}
    assert len(timed(report)) == report.summary.planned - 2


def test_what_is_lost_while_it_is_timed_is_timed_without_it(played) -> None:
    played.time = [LOST]
    report = run.run_tuning(REQUEST)
    first = next(one[1] for one in played.asked if one[0] == "time")
    assert {row.implementation for row in report.rows if row.case == first} == {"torch"}
    assert timed(report) == {one[1] for one in played.asked if one[0] == "look"}


def test_a_resumed_run_keeps_what_was_timed_of_other_targets(played) -> None:
    first = run.run_tuning(REQUEST)
    other = tuple(row.model_copy(update={"task": "L1/other"}) for row in first.rows[:1])
    second = run.run_tuning(REQUEST, before=first.model_copy(update={"rows": (*first.rows, *other)}))
    assert second.rows == (*first.rows, *other)
    assert len(second.untimed) == len(first.untimed)


def test_time_that_is_over_leaves_cases_and_a_resumed_run_takes_them(played, monkeypatch) -> None:
    clock = iter(range(0, 100_000, 2))
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock))
    first = run.run_tuning(REQUEST.model_copy(update={"seconds": 30.0}))
    assert 0 < first.summary.timed < first.summary.planned
    assert sum(first.summary.left.values()) == first.summary.planned - first.summary.timed
    played.asked.clear()
    task, (case, *_) = "L1/rms_norm", sorted(set(timed(run.run_tuning(REQUEST))) - timed(first))
    played.asked.clear()
    begun = Untimed(task=task, case=case, kernel="rms_norm", implementation="slow", why="too long")
    second = run.run_tuning(REQUEST, before=first.model_copy(update={"untimed": (begun,)}))
    assert second.untimed == (), "it is tried again with its case"
    assert second.rows[: len(first.rows)] == first.rows
    assert {one[1] for one in played.asked if one[0] == "time"} == timed(second) - timed(first)
    assert second.summary.timed == second.summary.planned
    elsewhere = first.environment.model_copy(update={"device": "another"})
    with pytest.raises(UsageError, match="Times do not mix"):
        run.run_tuning(REQUEST, before=first.model_copy(update={"environment": elsewhere}))


def test_interrupted_it_reports_what_was_timed(played) -> None:
    played.time = [None, KeyboardInterrupt()]
    report = run.run_tuning(REQUEST)
    assert not report.complete
    assert report.summary.timed == 1
    assert played.asked[-1] == ("close",)


def test_what_found_no_memory_beside_others_is_looked_at_alone(played) -> None:
    played.look = [Failed("OutOfMemoryError: no memory", lacks_memory=True)]
    report = run.run_tuning(REQUEST)
    first = played.asked[0][1]
    assert first in timed(report)
    looks = [(one[1], one[3]) for one in played.asked if one[0] == "look"]
    assert looks[0] == (first, False)
    assert looks[-1] == (first, True)
