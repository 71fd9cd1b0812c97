"""`make test` runs something of every test and of every variant, and counts what it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import budget
from tests.contract.test_cases import TINY

CASES = "tests/contract/test_cases.py::test_a"


def item(nodeid: str, whole: bool = False, **params: Any) -> Any:
    mark = pytest.mark.whole if whole else None
    return SimpleNamespace(
        nodeid=nodeid,
        callspec=SimpleNamespace(params=params),
        get_closest_marker=lambda name: mark if name == "whole" else None,
    )


def sampled(items: list[Any], **options: Any) -> tuple[list[Any], list[Any], int]:
    """Those that stay, those that are told as deselected, and the number that is printed."""
    options = {"--whole": False, **options}
    left: list[Any] = []
    config = SimpleNamespace(
        getoption=options.__getitem__,
        stash=pytest.Stash(),
        hook=SimpleNamespace(pytest_deselected=lambda items: left.extend(items)),
    )
    kept = list(items)
    budget.pytest_collection_modifyitems(config, kept)
    return kept, left, config.stash.get(budget.LEFT, 0)


def test_a_case_of_each_variant_is_kept_and_nothing_is_lost() -> None:
    items = [item(f"{CASES}[{case.task}:{case.variant}-{case.id}]", case=case) for case in TINY]
    kept, left, number = sampled(items)
    of = {(one.callspec.params["case"].task, one.callspec.params["case"].variant) for one in kept}
    assert of == {(case.task, case.variant) for case in TINY}
    assert len(kept) < len(TINY) / 2
    assert sorted(one.nodeid for one in kept + left) == sorted(one.nodeid for one in items)
    assert number == len(left)
    assert sampled(items)[0] == kept


def test_a_walk_over_cases_meets_each_variant() -> None:
    configs = [SimpleNamespace(getoption={"--whole": whole}.__getitem__) for whole in (False, True)]
    few, every = (budget.some(TINY, config) for config in configs)
    assert every == TINY
    assert {(case.task, case.variant) for case in few} == {(case.task, case.variant) for case in TINY}
    assert len(few) < len(TINY) / 2


def test_the_first_of_each_test_is_kept() -> None:
    items = [item(f"tests/unit/kernels/test_glu.py::test_{name}[{n}]") for name in "ab" for n in range(40)]
    kept, *_ = sampled(items)
    assert items[0] in kept
    assert items[40] in kept
    assert len(kept) < 40


def test_only_what_is_marked_is_left_of_tests_that_are_not_generated() -> None:
    items = [item(f"tests/unit/gate/test_gate.py::test[{n}]", whole=n == 7) for n in range(40)]
    assert sampled(items) == (items[:7] + items[8:], [items[7]], 1)


def test_the_whole_is_the_whole() -> None:
    items = [item(f"{CASES}[{n}]", whole=n == 7) for n in range(40)]
    assert sampled(items, **{"--whole": True}) == (items, [], 0)


@pytest.mark.parametrize("place", budget.SAMPLED)
def test_what_is_sampled_is_there(place: str) -> None:
    file, _, function = place.partition("::")
    path = Path(__file__).parents[2] / file
    assert path.exists()
    assert not function or f"def {function}(" in path.read_text()


def test_a_function_may_be_sampled_less_than_its_file() -> None:
    function = next(place for place in budget.SAMPLED if "::" in place)
    rare, others = ([item(f"{begins}[{n}]") for n in range(400)] for begins in (function, f"{CASES}x"))
    assert 1 < len(sampled(rare)[0]) < len(sampled(others)[0]) / 2


def test_seconds_are_summed_by_file(tmp_path: Path) -> None:
    seconds = budget.Seconds(tmp_path / "seconds.json")
    for name, when, s in (
        ("a", "setup", 1.0),
        ("a", "call", 2.0),
        ("b", "call", 4.0),
        ("b", "teardown", 0.5),
    ):
        seconds.pytest_runtest_logreport(
            SimpleNamespace(
                nodeid=f"tests/{name}.py::test", when=when, duration=s, user_properties=[("cpu_s", s / 2)]
            )
        )
    config = SimpleNamespace(stash=pytest.Stash(), getoption=lambda name, default: 2)
    config.stash[budget.LEFT] = 3
    seconds.pytest_sessionfinish(SimpleNamespace(config=config, testsfailed=1))
    found = json.loads((tmp_path / "seconds.json").read_text())
    assert found.pop("wall_s") >= found.pop("collect_s") == 0
    assert found == {
        "beside": 2,
        "left": 3,
        "failed": 1,
        "rows": [
            {"file": "tests/a.py", "tests": 1, "s": 3.0, "cpu_s": 1.5},
            {"file": "tests/b.py", "tests": 1, "s": 4.5, "cpu_s": 2.25},
        ],
    }
