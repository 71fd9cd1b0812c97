"""Real processes as the two sides of a whole-model trial."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastkernels.runner.models.sides import SideFailure, Sides, Timeouts
from tests.unit.runner.worker.test_pool import MODULES

SIDE = "tests.unit.runner.sides_for_tests:Engine"


def test_a_side_that_hangs_fails_when_its_time_is_over(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", MODULES)
    layers = {"baseline": (), "candidate": (tmp_path,)}
    sides = Sides(SIDE, layers, {"device": "cpu"}, False, tmp_path, Timeouts(start=60, call=0.3))
    try:
        assert sides.use("baseline").call("add", a=1, b=2) == {"sum": 3}
        with pytest.raises(SideFailure, match="no answer to 'hang' within") as caught:
            sides.use("candidate").call("hang")
        assert caught.value.side == "candidate"
        assert caught.value.failure.message.endswith("within 0.3 s")
        assert "about to hang" in caught.value.failure.output
    finally:
        sides.close()


def test_a_side_whose_processes_run_in_the_others_turn_has_failed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", MODULES)
    layers = {"baseline": (), "candidate": (tmp_path,)}
    sides = Sides(SIDE, layers, {"device": "cpu"}, False, tmp_path, Timeouts(start=60, call=10))
    try:
        candidate = sides.use("candidate")
        sides.use("baseline").call("add", a=1, b=2)
        candidate.worker.restless = "was continued"
        with pytest.raises(SideFailure, match=r"TAMPERED\(pause\): the process was continued") as caught:
            sides.use("candidate").call("add", a=1, b=2)
        assert caught.value.side == "candidate"
    finally:
        sides.close()


def test_a_candidate_that_leaves_a_gpu_busy_has_failed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", MODULES)
    said = iter([None, "kept a GPU busy"])
    idle_check: Any = SimpleNamespace(broken=lambda worker: next(said))
    layers = {"baseline": (), "candidate": (tmp_path,)}
    sides = Sides(
        SIDE, layers, {"device": "cpu"}, False, tmp_path, Timeouts(start=60, call=10), idle_check=idle_check
    )
    try:
        for side in ("candidate", "baseline", "candidate"):  # looked at where the candidate is stopped
            sides.use(side).call("add", a=1, b=2)
        with pytest.raises(SideFailure, match=r"TAMPERED\(pause\): the process kept a GPU busy") as caught:
            sides.use("baseline")
        assert caught.value.side == "candidate"
    finally:
        sides.close()


def test_a_tiny_model_has_less_time_and_a_user_chooses() -> None:
    tiny, full = Timeouts.of("tiny"), Timeouts.of("full")
    assert tiny.start < full.start
    assert tiny.call < full.call
    assert Timeouts.of("full", 7) == Timeouts(start=7, call=7)
