"""Audits that are joined: tasks admitted by all their cases, and only what is not good kept in full."""

from __future__ import annotations

from fastkernels.measure.environment import environment
from fastkernels.records import AuditCheck, AuditReport, AuditRow


def row(case: str, *checks: AuditCheck, margin: float | None = 9.0) -> AuditRow:
    good = all(check.good is not False for check in checks)
    return AuditRow(
        task="L1/rope", variant="default", case=case, rule="values", admitted=good, margin=margin, draws=7,
        checks=checks,
    )  # fmt: skip


def report(*rows: AuditRow) -> AuditReport:
    return AuditReport(
        schema=1, environment=environment("cpu"), request={}, tasks=(), rows=rows, wall_s=1.0,
        unaudited=("L1/rope big: no room",),
    )  # fmt: skip


def check(name: str, good: bool | None, elsewhere: bool = False) -> AuditCheck:
    return AuditCheck(kind="mutant", name=name, good=good, reason="a reason", elsewhere=elsewhere)


def test_what_one_part_leaves_open_another_shows(admission) -> None:
    left, shown = row("a", check("x", None, elsewhere=True)), row("b", check("x", True), margin=5.0)
    alone, both = admission.summary([report(left)]), admission.summary([report(left), report(shown)])
    assert [task["admitted"] for task in alone["tasks"]] == [False]
    assert [task["admitted"] for task in both["tasks"]] == [True]
    assert (both["cases"], both["checks"], both["smallest_margin"]) == (2, 2, 5.0)
    assert both["unaudited"] == ["L1/rope big: no room"] * 2
    assert [kept["bad"] for kept in both["rows"]] == [[], []]


def test_what_is_not_good_is_kept(admission) -> None:
    found = admission.summary([report(row("a", check("x", False), check("y", True)))])
    assert found["not_admitted"] == 1
    assert found["tasks"][0]["problems"] == ["a: x: a reason"]
    ((kept,),) = [one["bad"] for one in found["rows"]]
    assert kept["name"] == "x"


def test_no_margin_at_all(admission) -> None:
    assert admission.summary([report(row("a", margin=None))])["smallest_margin"] is None


def test_a_part_that_was_interrupted_makes_the_whole_incomplete(admission) -> None:
    cut_off = report(row("a")).model_copy(update={"complete": False})
    assert not admission.summary([report(row("b")), cut_off])["complete"]


def test_a_task_that_is_audited_again_replaces_itself_alone(admission) -> None:
    before = admission.summary([report(row("a", check("x", False)), row("b"))])
    other = row("c", margin=3.0).model_copy(update={"task": "L1/glu"})
    more = admission.joined(before, admission.summary([report(other)]))
    assert [(task["task"], task["admitted"]) for task in more["tasks"]] == [
        ("L1/glu", True),
        ("L1/rope", False),
    ]
    assert (more["cases"], more["checks"], more["not_admitted"], more["smallest_margin"]) == (3, 1, 1, 3.0)
    again = admission.joined(more, admission.summary([report(row("a", check("x", True)))]))
    assert [task["admitted"] for task in again["tasks"]] == [True, True]
    assert [(kept["task"], kept["case"]) for kept in again["rows"]] == [("L1/glu", "c"), ("L1/rope", "a")]
    # Each report could not audit one case of rope: that of the task that was audited again counts once.
    assert again["unaudited"] == ["L1/rope big: no room"]
    assert {"L1/rms_norm", "L1/linear"} <= set(again["left"])
    assert "L1/rope" not in again["left"]
