"""Exit code 3 is told as the last line, with what it means and what to do; the others need no line."""

from __future__ import annotations

import pytest

from fastkernels.records import AuditReport, GateReport
from fastkernels.report import exit_code, publish
from fastkernels.report.exit_codes import undecided
from tests.unit.report.conftest import row


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch) -> None:
    monkeypatch.setenv("FK_TRACKING", "false")


def of_rows(report, *verdicts: str):
    """A report of kernels whose rows have these verdicts."""
    bare = {"speedup": None, "speedup_ci": None, "significant": None, "timed": False}
    rows = tuple(
        row(f"case-{i}", verdict=verdict, **({} if verdict == "PASSED" else bare))
        for i, verdict in enumerate(verdicts)
    )
    summary = report.summary.model_copy(
        update={
            "rows": len(rows), "passed": verdicts.count("PASSED"), "failed": 0,
            "unstable": verdicts.count("UNSTABLE") + verdicts.count("INVALID_BASELINE"),
        }
    )  # fmt: skip
    return report.model_copy(update={"rows": rows, "summary": summary})


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (["PASSED", "UNSTABLE"], "1 row is UNSTABLE, neither passed nor failed. Run again where"),
        (["UNSTABLE", "UNSTABLE"], "2 rows are UNSTABLE"),
        (["PASSED", "INVALID_BASELINE"], "in 1 row the baseline failed: our fault, report it"),
        (["UNSUPPORTED"], "nothing was judged: this machine lacks"),
    ],
)
def test_of_kernels(kernel_report, capsys, verdicts: list[str], told: str) -> None:
    assert publish(of_rows(kernel_report, *verdicts)) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"exit code 3: {told}")


def test_of_models(eval_report, capsys) -> None:
    good, bad = eval_report.models
    wide = good.workloads[0].model_copy(update={"ratio_ci": (0.9, 1.3)})
    good = good.model_copy(update={"workloads": (wide, good.workloads[1])})
    self_test = eval_report.model_copy(update={"models": (good,), "candidates": ()})
    assert publish(self_test) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("exit code 3: 1 ratio is known to more than 5 % only. What is said of correctness")
    wrong = self_test.model_copy(update={"models": (good, bad), "unevaluated": {"flux": "no room"}})
    assert exit_code(wrong) == 3
    assert undecided(wrong).startswith("the baseline differs from itself in other: our fault, report it; ")
    assert "not evaluated: flux. Above stands why; 1 ratio is" in undecided(wrong)


def test_of_a_gate_and_an_audit() -> None:
    gate, audit = GateReport.model_construct(), AuditReport.model_construct()
    assert "docs/gates.md" in undecided(gate)
    assert "did not audit everything" in undecided(audit)


def test_other_codes_have_no_line(kernel_report, eval_report, capsys) -> None:
    assert [publish(one) for one in (kernel_report, eval_report)] == [1, 1]
    assert publish(of_rows(kernel_report, "PASSED")) == 0
    assert "exit code" not in capsys.readouterr().out
