"""A run of `fk kernels` without processes: what a baseline that fails costs, and what progress says."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from fastkernels import registry
from fastkernels.errors import BaselineError
from fastkernels.judge.verdict import Verdict
from fastkernels.loader.overlay import Overlay
from fastkernels.progress import Progress
from fastkernels.records import Failure, KernelReport
from fastkernels.report import exit_code, table
from fastkernels.runner.kernel_trial import run as run_module
from fastkernels.runner.kernel_trial.bench import Bench, Outcome
from fastkernels.runner.kernel_trial.request import Job, KernelsRequest, Work
from fastkernels.runner.kernel_trial.run import run_kernels
from fastkernels.runner.kernel_trial.worker_set import Unimportable

ASKED = KernelsRequest(targets=("rms_norm", "embedding"), size="tiny", device="cpu", self_test=True)


class StandInWorkerSet:
    """`starts(n)`: whether the processes of the n-th trial start."""

    levels, stays_root, overhead_ns = (), (), 0

    def __init__(self, starts) -> None:
        self.starts, self.asked, self.ranks = starts, 0, []

    def handles(self, job, ranks: int) -> tuple[None, None, None]:
        self.asked += 1
        self.ranks.append(ranks)
        if not self.starts(self.asked):
            raise BaselineError("A baseline worker does not start: no memory")
        return (None, None, None)

    def dismiss_candidate(self) -> None:
        pass


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch):
    class Passes:
        def __init__(self, bench, entry, case, *_: object) -> None:
            self.outcome = Outcome(Verdict.passed(), contract=bench.contract_of(case))

        def run(self) -> Outcome:
            return self.outcome

    monkeypatch.setattr(run_module, "Trial", Passes)

    def judge(starts, asked=ASKED) -> tuple[KernelReport, list[Progress], StandInWorkerSet]:
        worker_set, steps = StandInWorkerSet(starts), []
        monkeypatch.setattr(run_module._Run, "_worker_set", lambda *_: contextlib.nullcontext(worker_set))
        return run_kernels(asked, steps.append), steps, worker_set

    return judge


def test_a_baseline_that_fails_late_costs_no_row(judge) -> None:
    report, _, _ = judge(lambda number: number != 3)
    verdicts = [row.verdict for row in report.rows]
    assert (verdicts.count("PASSED"), verdicts[2]) == (len(verdicts) - 1, "INVALID_BASELINE")
    assert report.rows[2].failure.message == "A baseline worker does not start: no memory"
    assert (report.complete, exit_code(report)) == (True, 3)


def test_a_task_is_given_up_where_its_baseline_does_not_come_back(judge) -> None:
    report, _, worker_set = judge(lambda number: number < 3)
    tasks = {row.task: sum(other.task == row.task for other in report.rows) for row in report.rows}
    assert worker_set.asked == 2 + run_module.MOST_DEATHS * len(tasks)
    assert "2 other cases of" in report.rows[-1].failure.message
    assert report.rows[-1].failure.message.endswith("had no baseline")


def test_a_candidate_that_hangs_is_tried_once_in_a_task(judge, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(trial) -> Outcome:
        verdict = Verdict.failed("TIMEOUT", Failure(message="no answer to 'first' within 60 s"))
        return Outcome(verdict, contract="host", died=True, compiling_s=60.0)

    monkeypatch.setattr(run_module.Trial, "run", run)
    report, _, worker_set = judge(lambda number: True)
    tasks = {row.task for row in report.rows}
    assert worker_set.asked == len(tasks) == 2
    assert {row.verdict for row in report.rows} == {"TIMEOUT"}
    last = report.rows[-1]
    assert last.failure.message == f"not tried: another case of {last.task} timed out"


def test_a_baseline_that_fails_at_once_is_an_error(judge) -> None:
    with pytest.raises(BaselineError, match="no memory"):
        judge(lambda number: False)


def test_a_revision_that_cannot_be_imported_is_tried_once(judge, monkeypatch: pytest.MonkeyPatch) -> None:
    def handles(worker_set: StandInWorkerSet, job, ranks: int):
        worker_set.asked += 1
        raise Unimportable(Failure(message="NameError: no", file="a.py", line=3))

    monkeypatch.setattr(StandInWorkerSet, "handles", handles)
    report, _, worker_set = judge(lambda number: True)
    assert worker_set.asked == 1
    assert {(row.verdict, row.failure.message) for row in report.rows} == {("IMPORT_ERROR", "NameError: no")}
    assert exit_code(report) == 1


def test_every_step_says_how_many_trials_there_are(judge) -> None:
    report, steps, _ = judge(lambda number: True)
    assert [step.done for step in steps] == [*range(len(report.rows)), len(report.rows)]
    assert {step.total for step in steps} == {len(report.rows)}


def test_a_look_is_no_last_step_and_costs_no_row_either() -> None:
    steps: list[Progress] = []
    run = run_module._Run(ASKED, steps.append, total=7)
    with run._looking("mine · L1/rms_norm torch.compile"):
        raise BaselineError("no memory")
    assert steps[0] == Progress(0, 7, "mine · L1/rms_norm torch.compile")
    with run._looking("mine · L1/rms_norm kernels"):
        raise KeyError("a defect of ours")
    assert list(run.notes) == [
        "mine · L1/rms_norm torch.compile could not be looked at: BaselineError: no memory",
        "mine · L1/rms_norm kernels could not be looked at: KeyError: 'a defect of ours'",
    ]


def test_a_group_of_ranks_gets_as_many_processes_and_a_contract_of_its_own(judge) -> None:
    asked = ASKED.model_copy(update={"targets": ("all_reduce", "rms_norm")})
    report, _, worker_set = judge(lambda number: True, asked)
    ranks = {
        case.id: case.ranks for task in ("L1/all_reduce", "L1/rms_norm") for case in registry.cases(task)
    }
    assert worker_set.ranks == [ranks[row.case] for row in report.rows]
    assert set(worker_set.ranks) == {1, 2, 3}
    assert all(row.contract == ("host" if ranks[row.case] == 1 else "collective") for row in report.rows)


def test_a_group_of_ranks_is_unsupported_on_cuda_before_anything_runs() -> None:
    run = run_module._Run(ASKED.model_copy(update={"device": "cuda"}), lambda progress: None)
    bench = Bench("cuda", "graph", 1.0, random.Random(0), Overlay.over_baseline())
    case = registry.cases("L1/all_reduce", size="tiny")[0]
    nobody: Any = None  # a set that is asked for anything fails
    run._one(Job("mine"), Work(registry.task(case.task), case), nobody, bench)
    (row,) = run.rows
    assert (row.verdict, row.contract) == ("UNSUPPORTED", "collective")
    assert row.failure is not None
    assert row.failure.message == "2 ranks need 2 GPUs, here are 0; a CPU runs small ones: --device cpu"


def test_fail_fast_ends_a_run_at_its_first_failure(judge, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = iter(["PASSED", "UNSTABLE", "UNSUPPORTED", "CRASHED"])

    def run(trial) -> Outcome:
        status = next(verdicts)  # StopIteration: a trial too many
        failure = None if status == "PASSED" else Failure(message="as asked")
        return Outcome(Verdict(status=status, failure=failure), contract="host")

    monkeypatch.setattr(run_module.Trial, "run", run)
    report, _, _ = judge(lambda number: True, ASKED.model_copy(update={"fail_fast": True}))
    assert [row.verdict for row in report.rows] == ["PASSED", "UNSTABLE", "UNSUPPORTED", "CRASHED"]
    assert (report.complete, report.failed_fast, exit_code(report)) == (False, True, 1)
    assert "STOPPED at the first failure" in table.text(report)
    assert "INTERRUPTED" not in table.text(report)
