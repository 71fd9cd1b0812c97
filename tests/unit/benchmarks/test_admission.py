"""Audits that are joined: tasks admitted by all their cases, and only what is not good kept in full."""

from __future__ import annotations

import json
from types import SimpleNamespace

from fastkernels import registry
from fastkernels.audit.run import selected
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


def register(monkeypatch, *cases: str) -> None:
    """These are the cases of every task, each of a variant of its own."""
    found = [SimpleNamespace(id=case, variant=case, size="full") for case in cases]
    monkeypatch.setattr(registry, "cases", lambda *_: found)


def test_what_only_another_case_can_show_is_open_until_all_are_there(admission, monkeypatch) -> None:
    left = row("a", check("x", None, elsewhere=True))
    register(monkeypatch, "a", "b")
    found = admission.summary([report(left)])
    assert (found["not_admitted"], found["left"]["L1/rope"]) == (0, 1)
    found = admission.summary([report(row("b"))], found)
    assert found["tasks"][0]["refused"] == {"a": "x: not shown by this case, nor by any other"}


def test_what_one_part_leaves_open_another_shows(admission, monkeypatch) -> None:
    register(monkeypatch, "a")
    left, shown = row("a", check("x", None, elsewhere=True)), row("b", check("x", True), margin=5.0)
    alone, both = admission.summary([report(left)]), admission.summary([report(left), report(shown)])
    assert [task["admitted"] for task in alone["tasks"]] == [False]
    assert [task["admitted"] for task in both["tasks"]] == [True]
    assert (both["cases"], both["checks"], both["smallest_margin"]) == (2, 2, 5.0)
    assert both["unaudited"] == ["L1/rope big: no room"]  # of both parts, told once
    assert [kept["bad"] for kept in both["rows"]] == [[], []]


def test_what_is_not_good_is_kept(admission) -> None:
    found = admission.summary([report(row("a", check("x", False), check("y", True)))])
    assert found["not_admitted"] == 1
    assert found["tasks"][0]["refused"] == {"a": "x: a reason"}
    ((kept,),) = [one["bad"] for one in found["rows"]]
    assert kept["name"] == "x"


def test_no_margin_at_all(admission) -> None:
    assert admission.summary([report(row("a", margin=None))])["smallest_margin"] is None


def test_a_part_that_was_interrupted_makes_the_whole_incomplete(admission) -> None:
    cut_off = report(row("a")).model_copy(update={"complete": False})
    assert not admission.summary([report(row("b")), cut_off])["complete"]


def test_a_case_that_is_audited_again_replaces_itself_alone(admission) -> None:
    before = admission.summary([report(row("a", check("x", False)), row("b"))])
    other = row("c", margin=3.0).model_copy(update={"task": "L1/glu"})
    more = admission.summary([report(other)], before)
    assert [(task["task"], task["admitted"]) for task in more["tasks"]] == [
        ("L1/glu", True),
        ("L1/rope", True),
    ]
    assert [list(task["refused"]) for task in more["tasks"]] == [[], ["a"]]
    assert (more["cases"], more["checks"], more["refused"], more["smallest_margin"]) == (3, 1, 1, 3.0)
    again = admission.summary([report(row("a", check("x", True)))], more)
    assert [task["refused"] for task in again["tasks"]] == [{}, {}]
    assert [kept["case"] for kept in again["rows"]] == ["c", "a", "b"]
    assert again["unaudited"] == ["L1/rope big: no room"]
    assert admission.summary([report(row("big"))], again)["unaudited"] == []


def test_what_earlier_rows_show_and_leave_open_counts_as_long_as_they_stay(admission, monkeypatch) -> None:
    register(monkeypatch, "a")
    left, shown = row("a", check("x", None, elsewhere=True)), row("b", check("x", True), check("y", True))
    found = admission.summary([report(left)])
    assert not found["tasks"][0]["admitted"]
    found = json.loads(json.dumps(admission.summary([report(shown)], found)))
    assert found["tasks"][0]["admitted"]
    assert found["names"] == ["x", "y"]
    assert [found["shown"][kept["shown"]] for kept in found["rows"]] == [[], [0, 1]]
    shows_no_more = admission.summary([report(row("b", check("y", True)))], found)
    assert shows_no_more["tasks"][0]["refused"] == {"a": "x: not shown by this case, nor by any other"}


def test_what_is_left_is_of_the_size_that_was_audited(admission) -> None:
    for size in ("tiny", "full"):
        (first, *others) = selected(registry.task("glu"), size)
        audited = row(first.id).model_copy(update={"task": "L1/glu"})
        assert admission.summary([report(audited)])["left"]["L1/glu"] == len(others) > 0


def test_what_is_left_is_told_by_task(admission) -> None:
    first, *others = selected(registry.task("glu"), "full")
    rows = [row(case.id).model_copy(update={"task": "L1/glu"}) for case in (first, *others)]
    found = admission.summary([report(rows[0])])
    (task,) = found["tasks"]
    assert (task["cases"], task["of"], found["left"]["L1/glu"]) == (1, 1 + len(others), len(others))
    assert found["left"]["L1/rope"] == len(selected(registry.task("rope"), "full"))
    assert not found["complete"]
    found = admission.summary([report(*rows[1:])], found)
    assert "L1/glu" not in found["left"]
