"""Self-tests that add up over sessions: what is summed, what replaces what, and what is left."""

from __future__ import annotations

import json

import pytest

from fastkernels.records import KernelReport


@pytest.fixture
def self_test(program):
    return program("self_test")


def part(whole: KernelReport, first: int, last: int, **changes: object) -> KernelReport:
    rows = tuple(row.model_copy(update=changes) for row in whole.rows[first:last])
    return whole.model_copy(update={"rows": rows})


def test_parts_come_to_what_the_whole_comes_to(self_test, whole) -> None:
    once = self_test.summary([whole])
    first = self_test.summary([part(whole, 0, 30)])
    both = self_test.summary([part(whole, 30, len(whole.rows))], first["rows"])
    assert both == once
    assert once["cases"] == len(whole.rows)
    assert once["worst_pct"] == max(100 * abs(row.speedup - 1) for row in whole.rows if row.timed)
    assert "L1/rms_norm" in first["left"]
    assert once["left"]["L1/rms_norm"] < first["left"]["L1/rms_norm"]


def test_the_first_of_several_runs_begins_with_nothing(self_test, whole, called, tmp_path) -> None:
    report, out = tmp_path / "part.json", tmp_path / "all.json"
    report.write_text(part(whole, 0, 3).model_dump_json())
    called(self_test, str(report), "--out", str(out), "--resume")
    report.write_text(part(whole, 3, 5).model_dump_json())
    called(self_test, str(report), "--out", str(out), "--resume")
    assert len(json.loads(out.read_text())["rows"]) == 5


def test_a_case_that_ran_again_counts_as_it_ran_last(self_test, whole) -> None:
    before = self_test.summary([part(whole, 0, 20, speedup=2.0, significant=True, timed=True)])
    assert (before["worst_pct"], before["false_calls"]) == (100.0, 20)
    after = self_test.summary([part(whole, 0, 20)], before["rows"])
    assert after["false_calls"] == 0
    assert after["worst_pct"] < 2
    refused = self_test.summary([part(whole, 0, 5, verdict="WRONG")], after["rows"])
    assert (refused["not_passed"], refused["cases"]) == (5, 20)


def test_candidates_are_no_self_test(self_test, whole) -> None:
    judged = whole.model_copy(update={"request": {**whole.request, "self_test": False}})
    with pytest.raises(SystemExit, match="no self-tests"):
        self_test.summary([judged])
