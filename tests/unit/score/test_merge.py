"""Reports of several models, or of parts of one evaluation, as one."""

from __future__ import annotations

import pytest

from fastkernels.errors import UsageError
from fastkernels.records import EvalReport, Failure, UnfinishedModel
from fastkernels.score import calibrate
from fastkernels.score.macroeval import rescore
from fastkernels.score.merge import merge

from .conftest import latency, result, throughput


def of(report: EvalReport, model) -> EvalReport:
    return report.model_copy(update={"models": (model,)})


@pytest.fixture
def parts(report) -> tuple[EvalReport, EvalReport]:
    """One model, its throughput measured in one run and its latency in another."""
    first = result(workloads=(throughput(1.21),), d=(0.0, 0.01), kl=0.1, notes=("a",))
    second = result(workloads=(latency(1.0),), d=(0.03,), kl=0.4, notes=("a", "b"), ruin_d=(0.9, 0.96))
    return of(report, first), of(report, second)


def test_reports_of_several_models_are_one(report):
    one, two = (of(report, model) for model in report.models)
    assert rescore(merge([one, two])) == report
    assert merge([one]) == one


def test_parts_of_one_model_are_scored_as_one(parts):
    first, second = parts
    (model,) = rescore(merge(parts)).models
    assert [workload.name for workload in model.workloads] == ["balanced", "single-request"]
    assert model.d == (0.0, 0.01, 0.03)
    assert model.noise_d == first.models[0].noise_d + second.models[0].noise_d
    assert model.kl == pytest.approx((2 * 0.1 + 0.4) / 3)
    assert model.speedup == pytest.approx(1.21**0.5)
    assert model.notes == ("a", "b")
    ruin = calibrate.ruin_point((*first.models[0].ruin_d, *second.models[0].ruin_d))
    assert model.ruin_point == ruin
    assert model.correctness == calibrate.correctness(model.d, ruin, model.noise_floor)


def test_what_a_part_alone_looked_like_is_not_said_of_the_whole(report):
    first = result(workloads=(throughput(1.21),), ruin_d=(0.001, 0.002), notes=("a",))
    assert any("noise cannot be told from ruin" in note for note in first.notes)
    second = result(workloads=(latency(1.0),), ruin_d=(0.9, 0.96, 0.97))
    (model,) = rescore(merge([of(report, first), of(report, second)])).models
    assert (model.notes, model.valid) == (("a",), True)


def test_rounds_that_cannot_be_paired_are_the_files_fault(report, parts):
    model = parts[0].models[0]
    cut = model.workloads[0].model_copy(update={"baseline": (1.0,)})
    broken = of(report, model.model_copy(update={"workloads": (cut,)}))
    with pytest.raises(UsageError, match=r"llama.*cannot be paired"):
        merge([broken, parts[1]])


def test_a_model_that_failed_in_one_part_has_failed(report, parts):
    failed = calibrate.failed_model(
        model="llama", category="LLM", size="tiny", config="tiny", failure=Failure(message="it broke")
    )
    (model,) = rescore(merge([parts[0], of(report, failed)])).models
    assert (model.valid, model.correctness, model.speedup) == (False, 0.0, None)
    assert model.failure == failed.failure


def test_a_model_that_another_report_has_is_evaluated(report):
    first = report.model_copy(update={"unevaluated": {"jamba": "no memory", "gla": "no memory"}})
    second = of(report, result(model="gla"))
    assert merge([first, second]).unevaluated == {"jamba": "no memory"}


def test_what_was_skipped_or_not_finished_stays(report):
    timed = UnfinishedModel(model="jamba", config="tiny", size="tiny", workloads=report.models[0].workloads)
    first = report.model_copy(
        update={"skipped": {"flux": "no workload", "gla": "none"}, "unfinished": (timed,), "complete": False}
    )
    merged = merge([first, of(report, result(model="gla"))])
    assert merged.skipped == {"flux": "no workload"}
    assert merged.unfinished == (timed,)
    assert not merged.complete
    assert rescore(merged).macroeval is not None, "skipped models are no part of the score"


def test_reports_that_do_not_belong_together(report):
    with pytest.raises(UsageError, match=r"more than one report: llama \(tiny\): balanced, single-request"):
        merge([report, report])
    with pytest.raises(UsageError, match="self-test"):
        merge([report, report.model_copy(update={"candidates": ()})])
    other = report.environment.model_copy(update={"device": "NVIDIA H200"})
    with pytest.raises(UsageError, match="NVIDIA H200"):
        merge([report, report.model_copy(update={"environment": other})])


def test_parts_of_one_model_are_of_one_revision_and_one_candidate(parts):
    first, second = parts
    newer = second.environment.model_copy(update={"git_revision": "another"})
    with pytest.raises(UsageError, match="git_revision"):
        merge([first, second.model_copy(update={"environment": newer})])
    with pytest.raises(UsageError, match="same candidates"):
        merge([first, second.model_copy(update={"candidates": ("slower",)})])
