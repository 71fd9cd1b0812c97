"""score/macroeval.py: the published table, aggregation over families, the interval, rescoring a report."""

import math

import pytest

from fastkernels.errors import UsageError
from fastkernels.records import Failure, Swap
from fastkernels.score import calibrate, macroeval
from fastkernels.score.macroeval import Scored, aggregate, rescore

from .conftest import latency, result, throughput

PUBLISHED_S = [0.98397, 0.95178, 0.96523, 1.04466, 1.02822, 0.93259]
PUBLISHED_C = [1, 0.98518, 0.97594, 0.88200, 0, 0.99207, 1, 0.99429]


def published() -> list[Scored]:
    """Eight families of one model; the two whose correctness is below 0.9 have no valid model."""
    speeds = iter(PUBLISHED_S)
    return [
        Scored(f"family {i}", c, valid=c >= 0.9, speedup=next(speeds) if c >= 0.9 else None)
        for i, c in enumerate(PUBLISHED_C)
    ]


def test_the_public_leaderboards_aggregation():
    found = aggregate(published(), empty_family="drop")
    # Both the published inputs and the published results are rounded to five digits: half a unit each.
    assert found.speedup == pytest.approx(0.98360, abs=1e-5)
    assert found.correctness == pytest.approx(0.85368, abs=1e-5)
    assert found.coverage == 6 / 8
    assert found.score == pytest.approx(0.62976, abs=1e-5)


def test_a_family_without_a_valid_model_enters_at_one_half():
    found = aggregate(published())
    assert found.speedup == pytest.approx((math.prod(PUBLISHED_S) * 0.25) ** (1 / 8))
    assert found.by_category["family 4"] == {"correctness": 0, "coverage": 0, "models": 1, "speedup": 0.5}
    assert "speedup" not in aggregate(published(), "drop").by_category["family 4"]


def test_families_count_equally_whatever_their_size():
    many = (
        [Scored("LLM", 1.0, True, 2.0)] * 9
        + [Scored("LLM", 0.5, False, None)]
        + [Scored("Vision", 1.0, True, 0.5)]
    )
    found = aggregate(many)
    assert found.speedup == pytest.approx(1.0)
    assert found.correctness == pytest.approx((0.95 + 1) / 2)
    assert found.coverage == pytest.approx((0.9 + 1) / 2)


def test_nothing_valid_scores_zero():
    lost = [Scored("LLM", 0.2, False, None)]
    assert aggregate(lost).score == aggregate(lost, "drop").score == 0
    assert aggregate(lost, "drop").speedup == 0
    with pytest.raises(ValueError, match="at least one model"):
        aggregate([])


def test_the_three_weights():
    found = macroeval.macroeval([result(workloads=(throughput(1.21), latency(1.0)))])
    assert found.speedup == pytest.approx(1.1)
    assert found.speedup_throughput_only == pytest.approx(1.21)
    assert found.speedup_latency_only == pytest.approx(1.0)
    assert found.score == pytest.approx(found.speedup * found.correctness * found.coverage)


def test_the_interval_covers_the_score_and_follows_the_scatter():
    steady = macroeval.macroeval([result()])
    assert steady.score_ci[0] <= steady.score <= steady.score_ci[1]
    noisy = throughput(1.0).model_copy(update={"candidate": (60.0, 130.0, 100.0, 180.0, 90.0)})
    wide = macroeval.macroeval([result(workloads=(noisy, latency(1.0)))])
    assert wide.score_ci[1] - wide.score_ci[0] > 10 * (steady.score_ci[1] - steady.score_ci[0])
    assert macroeval.macroeval([result()]) == steady


def test_a_model_at_the_edge_of_validity_has_a_wide_interval():
    edge = result(d=(0.0,) * 8 + (0.2, 0.2))
    assert edge.valid
    low, high = macroeval.macroeval([edge]).score_ci
    assert low == 0
    assert high > 0.9


def test_failed_models_have_no_luck_in_the_interval():
    failed = calibrate.failed_model(
        model="x", category="LLM", size="tiny", config="tiny", failure=Failure(message="CRASHED")
    )
    assert macroeval.macroeval([failed]).score_ci == (0, 0)


def test_rescoring_reproduces_the_report(report):
    assert rescore(report) == report


def test_rescoring_with_the_published_ruin_point(report):
    found = rescore(report, f=0.5)
    assert {model.ruin_point for model in found.models} == {0.5}
    expected = [calibrate.correctness(m.d, 0.5, m.noise_floor) for m in report.models]
    assert [model.correctness for model in found.models] == expected
    strict = rescore(report, f=0.006)
    assert not any(model.valid for model in strict.models)
    assert strict.macroeval.coverage == 0


def test_a_note_of_another_score_does_not_stay(report):
    fast = result(workloads=(throughput(20.0), latency(1.0)), notes=("ran as root",))
    found = report.model_copy(update={"models": (fast,)})
    strict = rescore(found, f=0.0001)
    assert any("noise cannot be told from ruin" in note for note in strict.models[0].notes)
    assert (
        rescore(strict).models[0].notes == fast.notes == ("ran as root", "balanced: ratio 20 clipped to 10")
    )


def test_rescoring_with_another_weight_and_empty_families(report):
    assert rescore(report, lambda_=1).macroeval.speedup == report.macroeval.speedup_throughput_only
    broken = report.model_copy(
        update={"models": (report.models[0], result(model="bad", category="Audio", d=(1.0,)))}
    )
    half, drop = rescore(broken), rescore(broken, empty_family="drop")
    assert half.macroeval.speedup == pytest.approx(math.sqrt(1.1 * 0.5))
    assert drop.macroeval.speedup == pytest.approx(1.1)


def test_rounds_that_cannot_be_paired_are_the_files_fault(report):
    model = report.models[0]
    cut = model.workloads[0].model_copy(update={"baseline": (1.0,)})
    broken = model.model_copy(update={"workloads": (cut, *model.workloads[1:])})
    with pytest.raises(UsageError, match=f"{model.model}.*cannot be paired"):
        rescore(report.model_copy(update={"models": (broken,)}))


def test_rescoring_ignores_what_the_file_claims(report):
    forged = report.models[0].model_copy(
        update={"correctness": 1.0, "speedup": 9.0, "valid": True, "d": (0.9, 0.9)}
    )
    found = rescore(report.model_copy(update={"models": (forged,)}))
    assert not found.models[0].valid
    assert found.macroeval.score == 0


def test_a_swap_that_replaced_nothing_earns_no_coverage(report):
    empty = result(swap=Swap(sites=0, calls=0))
    found = rescore(report.model_copy(update={"models": (empty,)}))
    assert found.macroeval.coverage == 0
    self_test = report.model_copy(update={"models": (empty,), "candidates": ()})
    assert rescore(self_test).macroeval.coverage == 1


def test_an_interrupted_report_without_models(report):
    assert rescore(report.model_copy(update={"models": ()})).macroeval is None
