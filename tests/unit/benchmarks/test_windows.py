"""What windows, links alone and walks of honest code come to over reports."""

from __future__ import annotations

import pytest

from fastkernels.records import Integrity, KernelReport


@pytest.fixture
def windows(program):
    return program("windows")


def with_figures(report: KernelReport, **changes: object) -> KernelReport:
    """Its first three rows: two in `graph`, and one in `eager`, a single call."""
    chain = Integrity(
        beyond_us=(290, 289, 291.5), hidden_us=-1, may_hide_us=4, alone_us=(3, 2.9, 3.1), walk_us=(29, 30, 31)
    )
    other = chain.model_copy(update={"hidden_us": 0.7, "walk_us": (33, 30, 31), "alone_us": (4.2, 3, 3)})
    single = Integrity(beyond_us=(300, 301, 300), hidden_us=1.5, may_hide_us=6)
    times = {"baseline_us": 2.0, "candidate_us": 2.0, "verdict": "PASSED", "timed": True}
    figures = ({"integrity": chain}, {"integrity": other}, {"integrity": single, "contract": "eager"})
    rows = tuple(
        row.model_copy(update={**times, **one, **changes})
        for row, one in zip(report.rows, figures, strict=False)
    )
    return report.model_copy(update={"rows": (*rows, report.rows[3])})


def test_the_extremes_of_each_contract(windows, whole) -> None:
    found = windows.summary([with_figures(whole)])
    assert found["refused"] == []
    eager, graph = found["rows"]
    assert eager == {
        "contract": "eager",
        "cases": 1,
        "most_hidden_us": 1.5,
        "most_apart_us": 1.0,
        "alone": 0,
        "most_alone_us": None,
        "walks": 0,
        "least_walk": None,
    }
    assert (graph["cases"], graph["alone"], graph["walks"]) == (2, 2, 2)
    assert graph["most_hidden_us"] == 0.7
    assert graph["most_apart_us"] == 2.5
    assert graph["most_alone_us"] == pytest.approx(1.2 - 0.5), "a quarter of 2 us is allowed"
    assert graph["least_walk"] == pytest.approx(29 / 30)


def test_what_was_refused_is_named(windows, whole) -> None:
    found = windows.summary([with_figures(whole, verdict="IMPLAUSIBLE")])
    assert len(found["refused"]) == 3
    assert all(name.endswith(": IMPLAUSIBLE") for name in found["refused"])


def test_candidates_are_no_honest_code(windows, whole) -> None:
    request = {**whole.request, "self_test": False, "providers": False}
    with pytest.raises(SystemExit, match="nobody knows"):
        windows.summary([whole.model_copy(update={"request": request})])


def test_as_a_command(windows, whole, called, tmp_path) -> None:
    path, out = tmp_path / "report.json", tmp_path / "windows.json"
    path.write_text(with_figures(whole).model_dump_json())
    called(windows, str(path), "--out", str(out))
    assert '"most_hidden_us": 0.7' in out.read_text()
