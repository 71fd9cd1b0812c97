"""Runs in parts, and their reports as one. Nodes answer here without judging; one dies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from fastkernels.cluster import kernels, schedule
from fastkernels.cluster import models as of_models
from fastkernels.cluster.facts import facts
from fastkernels.cluster.schedule import Answered, Lost, Part, Problem
from fastkernels.errors import BaselineError, UsageError
from fastkernels.judge.summary import summarize
from fastkernels.loader.digest import files_of
from fastkernels.records import KernelReport, KernelRow
from fastkernels.runner.kernel_trial.request import KernelsRequest, candidate_sets, plan
from fastkernels.runner.models.eval_request import EvalRequest

EXAMPLES = Path(__file__).parents[3] / "examples" / "candidates"


class Nodes:
    """A cluster of two nodes: `b` dies under its first part, when `dies`. `judge(part)` answers elsewhere."""

    most_gpus = 0
    told = "2 nodes"

    def __init__(self, judge, dies: bool = False) -> None:
        self._judge, self._dies = judge, dies
        self.environment = facts("cpu").environment
        self._running: list[tuple[Part, str]] = []

    def answers(
        self, parts: Sequence[Part], candidates: Mapping, say, show
    ) -> Iterator[tuple[Part, Answered]]:
        assert {part.candidate for part in parts} - {"self-test", None} <= candidates.keys()
        return schedule.answers(parts, {"a": 1, "b": 1}, self, say, show)

    def start(self, part: Part, node: str) -> None:
        self._running.append((part, node))

    def ended(self) -> list[tuple[Part, Answered | Lost]]:
        if not self._running:
            return []
        part, node = self._running.pop()
        if node == "b" and self._dies:
            return [(part, Lost(node, f"node {node} died", is_dead=True))]
        return [(part, Answered(node, self._judge(part)))]

    def living(self) -> set[str]:
        return {"a", "b"}


def asked(**flags) -> KernelsRequest:
    usual = {"targets": ("L1/rms_norm", "L1/glu"), "device": "cpu", "size": "tiny", "seed": 7}
    return KernelsRequest(**{**usual, **flags}).resolved()


def judged(part: Part, verdict: str = "PASSED") -> KernelReport:
    body = part.body
    rows = tuple(
        KernelRow(
            task=body.task,
            variant=variant,
            case=case,
            candidate=body.job,
            verdict=verdict,
            contract="host",
            speedup=1.5 if verdict == "PASSED" else None,
        )
        for variant, case in sorted(body.cases)
    )
    machine = facts("cpu").environment
    sets = {found.name: found for found in candidate_sets(body.request)}
    return KernelReport(
        schema=1,
        environment=machine.model_copy(update={"isolation": ("processes", part.name)}),
        request=body.request.model_dump(mode="json"),
        rows=rows,
        candidates=(files_of(sets[body.job]),) if body.job in sets else (),
        summary=summarize(rows, 2.0, 1.0),
        complete=not (body.request.fail_fast and verdict != "PASSED"),
    )


def keys(report: KernelReport) -> list[tuple[str, str, str, str]]:
    return [(row.candidate, row.task, row.variant, row.case) for row in report.rows]


def planned(request: KernelsRequest) -> list[tuple[str, str, str, str]]:
    return [
        (job.name, work.entry.id, work.case.variant, work.case.id)
        for job in plan(request)
        for work in job.works
    ]


def test_every_row_is_there_once_and_in_its_place_with_a_node_that_died() -> None:
    request = asked(targets=("L1/rms_norm",), candidates=(str(EXAMPLES),))
    report = kernels.run_kernels_on(Nodes(judged, dies=True), request)
    assert keys(report) == planned(request)
    assert len(report.rows) > 2 * kernels.MOST_CASES
    assert report.complete
    assert report.request == request.model_dump(mode="json")
    assert [(use.node, use.trials) for use in report.nodes] == [("a", len(report.rows))]
    assert report.environment.isolation == ("processes",)
    assert sum("node b died; it begins again" in note for note in report.notes) == 1
    assert {one.name for one in report.candidates} == {"faster", "slower", "wrong"}


def test_parts_are_of_one_candidate_and_task_and_have_seeds_of_their_own() -> None:
    found: list[Part] = []

    def judge(part: Part) -> KernelReport:
        found.append(part)
        return judged(part)

    request = asked(self_test=True)
    report = kernels.run_kernels_on(Nodes(judge), request)
    assert keys(report) == planned(request)
    assert max(part.trials for part in found) <= kernels.MOST_CASES
    assert len({part.body.request.seed for part in found}) == len(found) > 2
    assert sum(use.trials for use in report.nodes) == len(report.rows)


def test_what_a_node_could_not_judge_is_a_row_without_a_verdict_on_the_candidate() -> None:
    def judge(part: Part) -> KernelReport | Problem:
        return Problem.of(BaselineError("no memory")) if part.body.task == "L1/glu" else judged(part)

    request = asked(self_test=True)
    report = kernels.run_kernels_on(Nodes(judge), request)
    assert keys(report) == planned(request)
    lost = [row for row in report.rows if row.task == "L1/glu"]
    assert {row.verdict for row in lost} == {"INVALID_BASELINE"}
    assert {row.failure.message for row in lost if row.failure} == {"no memory"}
    assert report.summary.unstable == len(lost)
    with pytest.raises(BaselineError, match="no memory"):
        kernels.run_kernels_on(Nodes(lambda part: Problem.of(BaselineError("no memory"))), request)


def test_a_row_that_no_answer_has_is_no_report() -> None:
    def judge(part: Part) -> KernelReport:
        report = judged(part)
        return report.model_copy(update={"rows": report.rows[1:]})

    with pytest.raises(BaselineError, match="are in no answer"):
        kernels.run_kernels_on(Nodes(judge), asked(self_test=True))


def test_a_row_in_two_answers_is_no_report() -> None:
    first: list[KernelReport] = []

    def judge(part: Part) -> KernelReport:
        first.append(judged(part))
        return first[0]

    with pytest.raises(UsageError, match="in two of the reports"):
        kernels.run_kernels_on(Nodes(judge), asked(self_test=True))


def test_the_first_failure_may_end_the_run() -> None:
    request = asked(self_test=True, fail_fast=True)
    report = kernels.run_kernels_on(Nodes(lambda part: judged(part, "WRONG(value)")), request)
    assert 0 < len(report.rows) <= kernels.MOST_CASES
    assert report.failed_fast


def test_interrupted_the_rows_so_far() -> None:
    answered: list[Part] = []

    def judge(part: Part) -> KernelReport:
        if answered:
            raise KeyboardInterrupt
        answered.append(part)
        return judged(part)

    report = kernels.run_kernels_on(Nodes(judge), asked(self_test=True))
    assert not report.complete
    assert len(report.rows) == answered[0].trials


def test_models_that_a_node_could_not_judge_are_not_evaluated_and_there_is_no_score() -> None:
    request = EvalRequest.parse(models=["llama", "mamba"], self_test=True, size="tiny", there="cpu")
    with pytest.raises(BaselineError, match="no memory"):
        of_models.run_eval_on(Nodes(lambda part: Problem.of(BaselineError("no memory"))), request)
    seen: list[EvalRequest] = []

    def judge(part: Part) -> Problem:
        seen.append(part.body.request)
        raise KeyboardInterrupt

    report = of_models.run_eval_on(Nodes(judge), request)
    assert not report.complete
    assert report.macroeval is None
    assert len(seen[0].models) == 1
    assert seen[0].workloads
    assert seen[0].seed == report.request["seed"]
