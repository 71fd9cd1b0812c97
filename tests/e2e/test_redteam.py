"""Every candidate of tests/candidates gets its verdict, and those that attack something beat a judge that has
no defence (naive.py): a defence that does nothing would fail here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.redteam import CANDIDATES, EXPECTED, OF_DEVICE, assert_fooled, fault, judge, naive

HERE = OF_DEVICE["cpu"]
ATTACKS = [name for name in HERE if "naive" in EXPECTED[name]]
FIRST = {EXPECTED[name]["verdict"]: name for name in reversed(HERE)}  # with each verdict


def each(names: list[str]) -> list[Any]:
    """Those that are no verdict's first are left to make test-all."""
    others = pytest.mark.whole
    return [name if name in FIRST.values() else pytest.param(name, marks=others) for name in names]


def asked(request: pytest.FixtureRequest) -> list[str]:
    """The candidates of the tests that run."""
    found = (item.callspec.params["name"] for item in request.session.items if hasattr(item, "callspec"))
    return list(dict.fromkeys(name for name in found if name in HERE))


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def judged(tmp_path_factory, request) -> dict[str, dict]:
    """One row for each candidate, on one small case."""
    names = asked(request)
    reports = judge(tmp_path_factory.mktemp("judged"), names, "cpu")
    rows = [row for report in reports for row in report["rows"]]
    assert len(rows) == len(names)
    assert all({"processes", "home", "environment"} <= set(r["environment"]["isolation"]) for r in reports)
    return {row["candidate"]: row for row in rows}


@pytest.fixture(scope="module")
def fooled(request) -> dict[str, dict]:
    """What the naive judges say of every attack, and of some candidates that attack nothing."""
    attacks = [name for name in asked(request) if name in ATTACKS]
    of_ranks = [name for name in attacks if EXPECTED[name].get("task") == "all_reduce"]
    alone = [name for name in attacks if name not in of_ranks]
    return naive("tests.e2e.naive", [*alone, "honest", "sleeps", "zeros"]) | naive(
        "tests.e2e.naive_ranks", [*of_ranks, "ranks_honest", "ranks_one_ends"]
    )


def test_every_candidate_has_an_expected_verdict() -> None:
    assert set(EXPECTED) == {folder.name for folder in CANDIDATES.iterdir() if [*folder.glob("L?")]}
    assert len(EXPECTED) >= 50


@pytest.mark.parametrize("name", each(HERE))
def test_candidates_get_their_verdict(judged, name: str) -> None:
    assert fault(name, judged[name]) is None


@pytest.mark.parametrize("name", each(ATTACKS))
def test_attacks_beat_a_judge_without_defence(fooled, name: str) -> None:
    assert_fooled(name, fooled[name])


def test_the_naive_judge_can_say_no(fooled) -> None:
    assert fooled["honest"]["passed"]
    assert fooled["sleeps"]["speedup"] < 0.5
    assert not fooled["zeros"]["passed"]
    assert fooled["ranks_honest"]["passed"]
    assert not fooled["ranks_one_ends"]["passed"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process another user")
def test_root_without_namespaces_gives_candidates_a_user(tmp_path: Path) -> None:
    """Then the kernel itself refuses what the judge would have to notice."""
    names = ["honest", "kills_baseline", "reniced_baseline", "reads_baseline"]
    (report,) = judge(tmp_path, names, "cpu", namespaces=False)
    if "user" not in report["environment"]["isolation"]:
        pytest.skip(f"candidates stay root here: {report['notes']}")
    assert {row["candidate"]: fault(row["candidate"], row) for row in report["rows"]} == dict.fromkeys(names)
    verdicts = {row["candidate"]: row["verdict"] for row in report["rows"]}
    assert verdicts["kills_baseline"] == verdicts["reniced_baseline"] == "IMPORT_ERROR"


def test_no_process_stays_behind(judged) -> None:
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            commands.append((folder / "cmdline").read_bytes())
        except OSError:
            continue
    assert not [command for command in commands if b"state not in" in command]
