"""report/standings.py: what is said of each candidate over tasks, worked by hand."""

from __future__ import annotations

from math import prod

import pytest

from fastkernels.report.standings import standings
from tests.unit.report.conftest import failed, row


def test_fast_p_is_a_share_of_tasks_and_the_gains_make_the_mean():
    rows = [
        row("a", task="L1/slow", speedup=0.5, calls=1),
        row("b", task="L1/fast", speedup=4.0, calls=2),
        row("c", task="L1/fast", speedup=1.0, significant=False, calls=1),  # 4^(2/3) = 2.52 over the task
        row("d", task="L1/same", speedup=1.04, significant=False, calls=4),
        row("e", task="L1/wrong", speedup=9.0, calls=1),
        failed("f").model_copy(update={"task": "L1/wrong"}),
    ]
    [one] = standings(rows)
    assert (one.right, *(one.fast(p) for p in (1.0, 1.5, 2.0, 3.0))) == (0.75, 0.25, 0.25, 0.25, 0.0)
    assert (one.passed, one.timed, len(one.rows)) == (5, 5, 6)
    assert prod(task.gain for task in one.tasks) == pytest.approx(one.mean)
    assert {task.task: task.share for task in one.tasks}["L1/fast"] == pytest.approx(3 / 9)


def test_what_is_within_the_noise_or_not_claimed_is_no_win():
    [one] = standings([row("a", speedup=1.2, significant=False), row("b", speedup=9.0, significant=None)])
    assert one.fast(1.0) == 0
    assert one.mean == pytest.approx((1.2 * 9.0) ** 0.5)


def test_an_unstable_case_is_not_right_and_nothing_timed_has_no_mean():
    unstable = failed("a").model_copy(update={"verdict": "UNSTABLE"})
    [one] = standings([unstable])
    assert (one.right, one.mean, one.tasks[0].gain) == (0.0, None, 1.0)


def test_contracts_and_candidates_stand_alone():
    rows = [row("a", contract="graph"), row("b", contract="eager"), row("a", contract="graph", candidate="x")]
    assert [(one.candidate, one.contract) for one in standings(rows)] == [
        ("mine", "graph"), ("mine", "eager"), ("x", "graph"),
    ]  # fmt: skip
