"""The whole gate on a simulated machine: what it catches, what it lets pass, what it says of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.gate.gate import GateRequest, run_gate
from fastkernels.gate.measurement import Measurement
from fastkernels.gate.pairs import Comparison, Pair, Version
from fastkernels.gate.rows import rows
from fastkernels.gate.verdicts import REPETITIONS
from fastkernels.records import GateLimits, GateReport
from fastkernels.report import exit_code
from fastkernels.report import json as reports
from fastkernels.runner.kernel_trial.request import Job, KernelsRequest, Work, judged_files
from tests.unit.gate.conftest import Machine, Runs

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "candidates"
CASE = "llama-tiny-T16-D64-f32"
SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(5, 20))]


def gate(head: str = "slower", base: str | None = "faster", **arguments) -> GateReport:
    arguments = {"device": "cpu", "case_glob": CASE} | arguments
    folder = None if base is None else str(EXAMPLES / base)
    return run_gate(GateRequest(head=str(EXAMPLES / head), base=folder, **arguments)).report


def verdicts(report: GateReport) -> dict[str, str]:
    return {row.case: row.verdict for row in report.rows}


# ---------------------------------------------------------------- caught, and passed


@pytest.mark.parametrize("seed", SEEDS)
def test_a_regression_of_5_percent_is_caught(runs: Runs, seed: int) -> None:
    runs.machine, runs.factor = Machine(seed), lambda job, work: 1.05
    report = gate()
    assert verdicts(report) == {CASE: "SLOW"}
    assert (report.outcome, exit_code(report)) == ("failed", 1)
    assert len(report.rows[0].looks) >= 2, "it must reproduce in fresh processes"


@pytest.mark.parametrize("seed", SEEDS)
def test_identical_code_passes(runs: Runs, seed: int) -> None:
    runs.machine = Machine(100 + seed)
    report = gate()
    assert verdicts(report) == {CASE: "SAME"}
    assert (report.outcome, exit_code(report)) == ("passed", 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_unlucky_process_is_no_regression(runs: Runs, seed: int) -> None:
    """The head's first process is 8 % slower for nothing; its next ones are not."""
    first = iter([1.08])
    runs.machine, runs.factor = Machine(200 + seed), lambda job, work: next(first, 1.0)
    report = gate()
    assert verdicts(report) == {CASE: "SAME"}
    assert len(report.rows[0].looks) == 1 + REPETITIONS
    assert exit_code(report) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_win_of_5_percent_is_told(runs: Runs, seed: int) -> None:
    runs.machine, runs.factor = Machine(300 + seed), lambda job, work: 1 / 1.05
    assert verdicts(gate()) == {CASE: "FAST"}


def test_a_regression_below_the_absolute_threshold_is_none(runs: Runs) -> None:
    runs.machine, runs.factor = Machine(1, base_us=4.0), lambda job, work: 1.05
    assert verdicts(gate()) == {CASE: "SAME"}
    assert verdicts(gate(min_regression_us=0.05)) == {CASE: "SLOW"}


def test_processes_that_differ_more_than_the_regression_leave_it_open(runs: Runs) -> None:
    """No verdict is forced: with 10 % between processes, 5 % are never called SLOW by one look."""
    runs.machine, runs.factor = Machine(4, process=0.1), lambda job, work: 1.05
    for _ in range(5):
        (row,) = gate().rows
        assert row.verdict != "SLOW" or sum(look.speedup < 1 for look in row.looks if look.speedup) >= 2


# ---------------------------------------------------------------- which rows are measured again


def test_only_suspicious_rows_are_measured_again(runs: Runs) -> None:
    slow = CASE
    runs.factor = lambda job, work: 1.2 if work.case.id == slow else 1.0
    report = gate(case_glob="llama-tiny-T16-*")
    check, first, *again = runs.calls
    assert {name for name, _ in check} == {"'slower' of the base", "'slower' of the head"}, (
        "a pair has the head's name"
    )
    assert len(first) > 1
    assert again == [[("slower", slow)]], "the second slow look convicts; nothing else is looked at again"
    assert verdicts(report)[slow] == "SLOW"
    assert set(verdicts(report).values()) == {"SLOW", "SAME"}


def test_a_busy_machine_is_unclear(runs: Runs) -> None:
    runs.verdict = lambda job, work: "UNSTABLE" if work.case.timed else "PASSED"
    report = gate()
    assert verdicts(report) == {CASE: "AMBIGUOUS"}
    assert "UNSTABLE" in report.rows[0].reason
    assert (report.outcome, exit_code(report)) == ("unclear", 3)


def test_a_difference_far_beyond_the_noise_is_a_verdict_on_a_busy_machine(runs: Runs) -> None:
    """Each look is UNSTABLE, its interval 1.6 to 2.9: too wide for a number, and all of it a gain."""
    unclaimed = {
        "speedup": 2.16, "speedup_ci": (1.6, 2.9), "baseline_us": 217.0, "candidate_us": 100.0,
        "noise_pct": 35.0, "samples": 31,
    }  # fmt: skip
    runs.verdict = lambda job, work: "UNSTABLE" if work.case.timed else "PASSED"
    runs.facts = lambda job, work: {"unclaimed": unclaimed}
    report = gate(min_speedup=1.5)
    assert verdicts(report) == {CASE: "FAST"}
    assert (len(report.rows[0].looks), report.summary.geomean_ci) == (2, pytest.approx((1.6, 2.9)))
    assert (report.outcome, exit_code(report)) == ("passed", 0)
    unclaimed |= {"speedup": 0.46, "speedup_ci": (0.34, 0.63)}
    report = gate()
    assert verdicts(report) == {CASE: "SLOW"}
    assert (report.outcome, exit_code(report)) == ("failed", 1)


# ---------------------------------------------------------------- right and wrong


def test_a_wrong_head_is_broken_and_not_timed(runs: Runs) -> None:
    runs.verdict = lambda job, work: "WRONG(value)" if job.name.endswith("head") else "PASSED"
    report = gate()
    (row,) = report.rows
    assert (row.verdict, row.head, row.base, row.looks) == ("BROKEN", "WRONG(value)", "PASSED", ())
    assert row.failure is not None
    assert len(runs.calls) == 1
    assert exit_code(report) == 1


def test_a_head_that_is_wrong_only_when_timed_is_broken(runs: Runs) -> None:
    runs.verdict = lambda job, work: "WRONG(value)" if work.case.timed else "PASSED"
    (row,) = gate().rows
    assert (row.verdict, row.head) == ("BROKEN", "WRONG(value)")
    assert row.failure is not None


def test_a_wrong_base_is_nothing_to_compare_with(runs: Runs) -> None:
    runs.verdict = lambda job, work: "CRASHED" if job.name.endswith("base") else "PASSED"
    report = gate()
    (row,) = report.rows
    assert (row.verdict, row.base, row.looks) == ("NEW", "CRASHED", ())
    assert exit_code(report) == 0


def test_of_a_base_that_fails_itself_the_row_says_so(runs: Runs, tmp_path: Path) -> None:
    entry = registry.task("L1/rms_norm")
    work = Work(entry, registry.cases(entry, size="tiny")[0])
    works = {(entry.id, work.case.id): work}
    pair = Pair("baseline", *(Version(works, source=tmp_path / side) for side in ("head", "base")))
    runs.verdict = lambda job, work: "INVALID_BASELINE"
    limits = GateLimits(max_regression_pct=3, min_regression_us=0.3)
    measured = Measurement(Comparison("h", "b", (pair,)), KernelsRequest(), limits, lambda progress: None)
    measured.measure()
    (row,) = rows(measured, "host")
    assert (row.verdict, row.reason.split(",")[0]) == ("AMBIGUOUS", "the base itself fails here")


def test_held_out_shapes_are_checked_and_not_timed(runs: Runs) -> None:
    report = gate(case_glob=None)
    untimed = [row for row in report.rows if not row.timed]
    assert untimed
    assert all(row.verdict == "SAME" and row.looks == () for row in untimed)
    runs.verdict = lambda job, work: "WRONG(value)" if job.name.endswith("head") else "PASSED"
    assert {row.verdict for row in gate(case_glob=None).rows} == {"BROKEN"}


def write(folder: Path, *tasks: str) -> Path:
    """A candidate with the baseline's own files."""
    for task in tasks:
        file = folder / f"{task}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((ROOT / "tasks" / "baseline" / f"{task}.py").read_text())
    return folder


def test_what_one_side_lacks_is_new_or_missing(runs: Runs, tmp_path: Path) -> None:
    head = write(tmp_path / "head", "L1/rms_norm", "L1/glu")
    base = write(tmp_path / "base", "L1/rms_norm", "L1/rope")
    report = run_gate(GateRequest(head=str(head), base=str(base), device="cpu")).report
    found = {
        task: {r.verdict for r in report.rows if r.task == task}
        for task in ("L1/rms_norm", "L1/glu", "L1/rope")
    }
    assert found == {"L1/rms_norm": {"SAME"}, "L1/glu": {"NEW"}, "L1/rope": {"MISSING"}}
    assert exit_code(report) == 1
    new = next(row for row in report.rows if row.task == "L1/glu")
    assert (new.head, new.base) == ("PASSED", None), "what is new is still checked"


def test_without_a_base_the_baseline_is_it(runs: Runs) -> None:
    report = gate(base=None)
    assert report.base == "the baseline"
    assert [name for call in runs.calls for name, _ in call] == ["'slower' of the head", "slower"]


@pytest.mark.parametrize("changed", [{}, {"device": "another device"}, {"contract": "graph"}])
def test_a_report_of_elsewhere_is_said(runs: Runs, tmp_path: Path, changed: dict) -> None:
    base, request = str(EXAMPLES / "faster"), {"contract": "host", "size": "tiny"} | changed
    kernels = KernelsRequest(candidates=(base,), device="cpu")
    made = runs(kernels, None, []).model_copy(
        update={"request": {"candidates": [base], **request}, "candidates": judged_files(kernels)}
    )
    there = {"device": changed.get("device", made.environment.device)}
    made = made.model_copy(update={"environment": made.environment.model_copy(update=there)})
    reports.write(made, tmp_path / "report.json")
    request = GateRequest(head=str(EXAMPLES / "slower"), base=str(tmp_path / "report.json"), device="cpu")
    found = run_gate(request.model_copy(update={"case_glob": CASE})).report
    assert any("what passed there need not pass here" in note for note in found.notes) == bool(changed)


def test_several_candidates_are_compared_by_name(runs: Runs, tmp_path: Path) -> None:
    for side, names in (("head", "ab"), ("base", "bc")):
        for name in names:
            write(tmp_path / side / name, "L1/rms_norm")
    runs.factor = lambda job, work: 1.3 if "head/b" in str(job.layers[0]) else 1.0
    report = run_gate(
        GateRequest(head=str(tmp_path / "head"), base=str(tmp_path / "base"), device="cpu", case_glob=CASE)
    ).report
    assert {row.candidate: row.verdict for row in report.rows} == {"a": "NEW", "b": "SLOW", "c": "MISSING"}


# ---------------------------------------------------------------- part of a CUDA graph, and of torch.compile

LOST = {"contract": "eager", "baseline_capture": "yes", "capture": "no", "capture_detail": "it waits"}
KEPT = {"contract": "graph", "baseline_capture": "yes", "capture": "yes"}


def test_a_head_that_lost_its_cuda_graph_is_broken_however_fast(runs: Runs) -> None:
    runs.facts, runs.factor = lambda job, work: LOST, lambda job, work: 0.5
    report = gate()
    (row,) = report.rows
    assert (row.verdict, row.head, row.contract) == ("BROKEN", "PASSED", "eager")
    assert "the base can be captured in a CUDA graph, the head cannot: it waits" in row.reason
    assert [(look.base_capture, look.head_capture, look.contract) for look in row.looks] == [
        ("yes", "no", "eager")
    ] * 2, "again in fresh processes"
    assert (report.outcome, exit_code(report)) == ("failed", 1)


@pytest.mark.parametrize(
    "facts",
    [
        KEPT,
        {"contract": "eager", "baseline_capture": "no", "capture": "no"},
        {"contract": "eager", "baseline_capture": "no", "capture": "yes"},
        {"compile": "ok"},
        {"compile": "n/a", "compile_detail": "the baseline too"},
    ],
)
def test_what_the_base_cannot_either_is_nothing_lost(runs: Runs, facts: dict) -> None:
    runs.facts = lambda job, work: facts
    assert verdicts(gate()) == {CASE: "SAME"}


def test_a_capture_that_fails_once_is_unclear(runs: Runs) -> None:
    first = iter([LOST])
    runs.facts = lambda job, work: next(first, KEPT)
    report = gate()
    (row,) = report.rows
    assert (row.verdict, row.contract, len(row.looks)) == ("AMBIGUOUS", "graph", 3)
    assert exit_code(report) == 3


def test_a_head_on_a_busy_machine_that_lost_its_cuda_graph_is_broken(runs: Runs) -> None:
    runs.facts = lambda job, work: LOST
    runs.verdict = lambda job, work: "UNSTABLE" if work.case.timed else "PASSED"
    assert verdicts(gate()) == {CASE: "BROKEN"}


@pytest.mark.parametrize("status", ["graph break", "recompiles", "error"])
def test_a_head_that_torch_compile_does_not_take_is_broken(runs: Runs, status: str) -> None:
    runs.facts = lambda job, work: {"compile": status, "compile_detail": "inside L2/mlp: why"}
    (row,) = gate(compile_check=True).rows
    assert row.verdict == "BROKEN"
    assert f"of the head it says {status}: inside L2/mlp: why" in row.reason
    assert [request.compile_check for request in runs.requests] == [False, True, True], "not in the check"


def test_torch_compile_is_asked_where_it_was_asked_for(runs: Runs) -> None:
    gate()
    assert not any(request.compile_check or request.attribution for request in runs.requests)


def test_every_run_has_the_timeout_that_was_asked_for(runs: Runs) -> None:
    runs.factor = lambda job, work: 1.2
    gate(timeout_s=7.5)
    assert [request.timeout_s for request in runs.requests] == [7.5] * 3
    gate()
    assert runs.requests[-1].timeout_s is None


# ---------------------------------------------------------------- contracts

EAGER = {"contract": "eager", "baseline_capture": "no", "capture": "no"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [0.94, 1.0, 1.06])
def test_identical_code_in_eager_is_no_regression(runs: Runs, seed: int, factor: float) -> None:
    """Two of its processes differ by up to 8 % for their whole lives, and so may their successors."""
    runs.machine, runs.factor = Machine(400 + seed), lambda job, work: factor
    runs.facts = lambda job, work: EAGER
    report = gate()
    assert verdicts(report) == {CASE: "SAME"}
    assert "(up to 8.0 %) than --max-regression 3 %" in report.notes[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_regression_beyond_the_noise_of_eager_is_caught(runs: Runs, seed: int) -> None:
    runs.machine, runs.factor = Machine(500 + seed), lambda job, work: 1.12
    runs.facts = lambda job, work: EAGER
    assert verdicts(gate()) == {CASE: "SLOW"}


def test_a_look_under_another_contract_decides_nothing(runs: Runs) -> None:
    """A capture failed on both sides in the second look; 5 % are a regression in a graph."""
    facts = iter([KEPT, EAGER, KEPT])
    runs.facts, runs.factor = lambda job, work: next(facts), lambda job, work: 1.05
    (row,) = gate().rows
    assert [look.contract for look in row.looks] == ["graph", "eager", "graph"]
    assert (row.verdict, row.contract) == ("SLOW", "graph")


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_of_a_head_that_waits_for_the_device_nothing_is_claimed(runs: Runs, factor: float) -> None:
    runs.facts, runs.factor = lambda job, work: EAGER | {"significant": None}, lambda job, work: factor
    (row,) = gate().rows
    assert row.verdict == "AMBIGUOUS"
    assert "the head waits for the device" in row.reason
    assert all(look.waits for look in row.looks)


# ---------------------------------------------------------------- the rest


def test_the_least_speedup(runs: Runs) -> None:
    runs.factor = lambda job, work: 0.8
    assert gate(min_speedup=1.1).outcome == "passed"
    report = gate(min_speedup=1.5)
    assert (report.summary.min_speedup, report.outcome) == ("missed", "failed")


@pytest.mark.parametrize("after", [1, 2, 3])
def test_after_ctrl_c_only_what_is_known(runs: Runs, after: int) -> None:
    runs.interrupted_after, runs.factor = after, lambda job, work: 1.2
    report = gate(case_glob="llama-tiny-T16-*")
    assert not report.complete
    assert report.outcome != "passed"
    assert exit_code(report) == 130
    assert len(runs.calls) == after
    known = {"SLOW"} if after == 3 else {"SAME"} if after == 2 else set()
    assert set(verdicts(report).values()) - {"SAME"} <= known


def test_two_revisions_are_checked_against_the_kernels_of_the_base(runs: Runs, tmp_path: Path) -> None:
    """The `fk` that runs may be the head's."""
    entry = registry.task("L1/rms_norm")
    work = Work(entry, registry.cases(entry, size="tiny")[0])
    works = {(entry.id, work.case.id): work}
    head, base = (Version(works, source=tmp_path / side) for side in ("head", "base"))
    checked = []

    def verdict(job: Job, work: Work) -> str:
        checked.append((job.source, job.base_source))
        return "WRONG(value)"

    runs.verdict = verdict
    comparison = Comparison("head", "base", (Pair("baseline", head, base),))
    limits = GateLimits(max_regression_pct=3, min_regression_us=0.3)
    Measurement(comparison, KernelsRequest(), limits, lambda progress: None).measure()
    assert sorted(checked) == [(tmp_path / side, tmp_path / "base") for side in ("base", "head")]


def test_rows_of_one_task_lie_together(runs: Runs, tmp_path: Path) -> None:
    works = {}
    for task in ("L1/rms_norm", "L1/glu"):
        entry = registry.task(task)
        case = registry.cases(entry, size="tiny")[0]
        works[task, case.id] = Work(entry, case)
    pairs = tuple(Pair(name, *[Version(works, source=tmp_path / name)] * 2) for name in ("one", "two"))
    limits = GateLimits(max_regression_pct=3, min_regression_us=0.3)
    measured = Measurement(Comparison("head", "base", pairs), KernelsRequest(), limits, lambda progress: None)
    measured.measure()
    found = [(row.task, row.candidate) for row in rows(measured, "host")]
    assert found == [(task, name) for task in ("L1/rms_norm", "L1/glu") for name in ("one", "two")]


def test_looks_alternate_head_and_base_in_one_job(runs: Runs) -> None:
    seen: list[Job] = []

    def factor(job: Job, work: Work) -> float:
        seen.append(job)
        return 1.0

    runs.factor = factor
    gate()
    (job,) = seen
    assert (job.layers, job.base_layers) == ((EXAMPLES / "slower",), (EXAMPLES / "faster",))


def test_nothing_to_compare_is_an_error(runs: Runs) -> None:
    with pytest.raises(UsageError, match="Neither side has a candidate for L1/glu, but for L1/rms_norm"):
        gate(targets=("glu",), case_glob=None)
