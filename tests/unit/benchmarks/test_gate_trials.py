"""Trials of the gate add up over sessions."""

from __future__ import annotations

import json

import pytest


def test_the_first_of_several_runs_begins_with_nothing(program, called, monkeypatch, tmp_path) -> None:
    trials = program("gate_trials")
    monkeypatch.setattr(
        trials, "_gate", lambda folder, head, *_: {"head": head, "outcome": trials.WANTED[head]}
    )
    out = tmp_path / "trials.json"
    for times in (1, 3):
        called(trials, "--device", "cpu", "--times", str(times), "--out", str(out), "--resume")
    found = json.loads(out.read_text())
    assert [row["trial"] for row in found["rows"]] == [0, 0, 1, 1, 2, 2]
    assert (found["times"], len(found["earlier"])) == (3, 1)
    with pytest.raises(SystemExit):
        called(trials, "--device", "cpu", "--resume")
