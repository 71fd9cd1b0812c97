"""report/comparison.py: what moved, and what may not be compared."""

from __future__ import annotations

import pytest

from fastkernels.errors import UsageError
from fastkernels.report.comparison import compare
from tests.unit.report.conftest import failed, row


def with_rows(report, *rows):
    return report.model_copy(update={"rows": rows})


def around(value: float) -> dict:
    return {"speedup": value, "speedup_ci": (value * 0.999, value * 1.001), "noise_pct": 0.5}


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (around(1.0), around(1.1), "faster"),
        (around(1.0), around(0.9), "slower"),
        (around(1.0), around(1.008), "same"),  # within the least noise, 1 %
        (around(1.0), around(1.1) | {"noise_pct": 5.0}, "same"),  # twice 5 %
        (around(1.0), around(1.1) | {"speedup_ci": (1.0, 1.2)}, "same"),
        (around(1.0), around(2.0) | {"significant": None}, "same"),  # nothing is claimed
        (around(1.0), around(2.0) | {"contract": "eager"}, "not comparable"),
    ],
)
def test_a_row_moves_beyond_interval_and_noise_alone(kernel_report, before, after, moved):
    found = compare(with_rows(kernel_report, row("a", **before)), with_rows(kernel_report, row("a", **after)))
    assert [change.moved for change in found.changes] == [moved]


def test_verdicts_that_changed_are_told_and_rows_of_one_report_are_named(kernel_report):
    before = with_rows(kernel_report, row("a"), failed("b"), failed("c"), row("old"))
    after = with_rows(kernel_report, failed("a"), row("b"), failed("c"), row("new"))
    found = compare(before, after)
    assert {change.where: change.moved for change in found.changes} == {
        "a": "broken",
        "b": "mended",
        "c": "same",
    }
    assert (found.only_before, found.only_after) == (("L1/rms_norm  old",), ("L1/rms_norm  new",))


def test_one_candidate_is_held_against_another_several_by_name(kernel_report):
    one, other = row("a"), row("a", candidate="other")
    assert len(compare(with_rows(kernel_report, one), with_rows(kernel_report, other)).changes) == 1
    both = compare(with_rows(kernel_report, one, other), with_rows(kernel_report, other))
    assert [change.what for change in both.changes] == ["L1/rms_norm  other"]
    assert both.only_before == ("L1/rms_norm  mine  a",)


def test_nothing_moves_between_a_report_and_itself(kernel_report, eval_report):
    for report in (kernel_report, eval_report):
        found = compare(report, report)
        assert {change.moved for change in found.changes} == {"same"}
        assert (found.differing, found.only_before, found.only_after) == ((), (), ())


def test_models_move_by_workload_and_by_validity(eval_report):
    llama, other = eval_report.models
    slower = llama.workloads[0].model_copy(update={"throughput_ratio": 0.9, "ratio_ci": (0.89, 0.91)})
    models = (llama.model_copy(update={"workloads": (slower, llama.workloads[1]), "valid": False}), other)
    found = compare(eval_report, eval_report.model_copy(update={"models": models}))
    moved = {(change.what, change.where): change.moved for change in found.changes}
    assert moved["llama tiny", "balanced"] == "slower"
    assert moved["llama tiny", "valid"] == "broken"
    assert moved["llama tiny", "single-request"] == "same", "it has no interval, so nothing is known"
    assert moved["other tiny", "valid"] == "same"
    assert found.totals["MacroEval"][0] == f"{eval_report.macroeval.score:.4f}"
    assert moved["MacroEval", "score"] == "same", "the report's own was not computed again"
    less = eval_report.macroeval.model_copy(update={"score": 0.1, "score_ci": (0.09, 0.11)})
    [score, *_] = compare(eval_report, eval_report.model_copy(update={"macroeval": less})).changes
    assert (score.what, score.moved) == ("MacroEval", "slower")
    fewer = eval_report.model_copy(update={"models": (llama,)})
    assert not compare(eval_report, fewer).totals, "scores over other models do not compare"


def test_what_cannot_be_compared_is_refused_with_what_to_do(kernel_report, eval_report):
    elsewhere = kernel_report.environment.model_copy(update={"device": "NVIDIA H200", "torch": "9.9"})
    there = kernel_report.model_copy(update={"environment": elsewhere})
    with pytest.raises(UsageError, match=r"NVIDIA H200: speed-ups of two devices do not compare.* --force"):
        compare(kernel_report, there)
    forced = compare(kernel_report, there, force=True)
    assert [line.split(":")[0] for line in forced.differing] == ["device", "torch"]
    with pytest.raises(UsageError, match="fk kernels and one of fk eval measure different things"):
        compare(kernel_report, eval_report)
    with pytest.raises(UsageError, match=r"nothing in common.*tiny-T7-D64-f32.*Name two reports"):
        compare(kernel_report, with_rows(kernel_report, row("strange")))
