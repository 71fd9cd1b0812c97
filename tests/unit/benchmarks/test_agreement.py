"""benchmarks/agreement.py: what it counts, and a run of a tiny model."""

from __future__ import annotations

import json

import pytest


def test_agreement_is_counted_position_by_position(agreement) -> None:
    machine = agreement.Machine("llama", "tiny", "cpu")
    theirs = {"float32": [1, 2, 3, 4], "half": [1, 2, 0, 0], "version": "1"}
    report = agreement._report(machine, theirs, {"choices": [1, 2, 3, 0], "version": "2"})
    assert report["agreement"] == {"fastkernels": 0.75, "transformers": 0.5}
    assert report["difference"] == 0.25
    assert report["standard_error"] == pytest.approx(0.25)
    with pytest.raises(ValueError, match="longer"):
        agreement._report(machine, theirs, {"choices": [1, 2, 3], "version": "2"})


@pytest.mark.filterwarnings("ignore")  # of transformers, which is not ours
def test_a_tiny_model_in_float32_agrees_everywhere(
    agreement, called, side_here, tmp_path, monkeypatch
) -> None:
    """Without processes of its own: those are test_vs_reference.py's."""
    out = tmp_path / "report.json"
    monkeypatch.setattr(agreement, "in_a_process", side_here)
    called(agreement, "llama", "--size", "tiny", "--device", "cpu", "--out", str(out))
    report = json.loads(out.read_text())
    assert report["agreement"] == {"fastkernels": 1.0, "transformers": 1.0}
    assert report["positions"] == 128
