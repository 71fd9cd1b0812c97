"""What the tests take is summed over runs and files, and generated groups alone grow with architectures."""

from __future__ import annotations

import pytest


def run(beside: int, wall_s: float, **seconds: float) -> dict:
    rows = [
        {"file": f"tests/{name.replace('__', '/')}.py", "tests": 2, "s": s, "cpu_s": s / 2}
        for name, s in seconds.items()
    ]
    return {"wall_s": wall_s, "collect_s": 3, "beside": beside, "left": 5, "failed": 0, "rows": rows}


def test_groups_of_all_runs_and_what_grows(program) -> None:
    together = run(2, 70, contract__test_tasks=40, unit__gate__test_gate=60, unit__gate__test_rows=20)
    timed = run(1, 30, e2e__test_redteam=25)
    found = program("test_seconds").report([together, timed], architectures=8)
    assert {row["group"]: (row["tests"], row["share_s"], row["cpu_s"]) for row in found["rows"]} == {
        "unit/gate": (4, 40, 40),
        "e2e": (2, 25, 12.5),
        "contract": (2, 20, 20),
        "(collection)": (0, 6, 0),
    }
    assert (found["tests"], found["left"]) == (8, 10)
    assert found["minutes"] == pytest.approx(100 / 60)
    assert found["minutes_at_48"] == pytest.approx((100 + 5 * 20 + 5 * 6) / 60)


def test_every_group_that_grows_is_there(program) -> None:
    from tests.redteam import ROOT

    assert [name for name in program("test_seconds").GROWS if not (ROOT / "tests" / name).exists()] == []
