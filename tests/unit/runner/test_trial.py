"""When a trial has a narrow interval, and yet no ratio; and what happened to its baseline."""

from types import SimpleNamespace
from typing import Any

import pytest

from fastkernels.records import Contract
from fastkernels.runner.blocks import Blocks
from fastkernels.runner.trial import Trial
from tests.unit.runner.test_blocks import reading


def trial(contract: Contract) -> Trial:
    made = Trial.__new__(Trial)
    made._outcome = SimpleNamespace(contract=contract)  # type: ignore[assignment]
    return made


def blocks(other: float = 1.0, baseline_waits: bool = False, candidate_waits: bool = False) -> Blocks:
    """A' takes `other` times as long as A in every block, as steadily as clocks can."""
    found = Blocks()
    for index in range(40):
        found.add(
            index,
            reading(1000, waits=baseline_waits),
            reading(1000, waits=candidate_waits),
            reading(1000 * other, waits=baseline_waits),
        )
    return found


@pytest.mark.parametrize(
    ("contract", "other", "found"),
    [("eager", 1.13, "differ by up to"), ("eager", 1.05, None), ("graph", 1.13, None), ("host", 1.13, None)],
)
def test_baselines_that_differ_leave_no_ratio_of_single_calls(contract, other: float, found) -> None:
    said = trial(contract)._without_ratio(blocks(other))
    assert said is None if found is None else found in said


def test_a_baseline_that_waits_leaves_none_however_well_two_processes_agree() -> None:
    said = trial("eager")._without_ratio(blocks(baseline_waits=True))
    assert said is not None
    assert "the host's work is in its time" in said
    assert trial("eager")._without_ratio(blocks(candidate_waits=True)) is None


def baseline(**worker: Any) -> Any:
    """A party whose process nobody rescheduled."""
    usual = {"alive": True, "meddled": None, "restless": None, "standing": lambda: None, "closed": False}
    made = SimpleNamespace(**{**usual, **worker})
    made.close = lambda: setattr(made, "closed", True)
    return SimpleNamespace(standing=None, worker=made)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("happened", "label"),
    [
        ({}, None),
        ({"meddled": "was stopped in its turn"}, "TAMPERED(baseline)"),
        ({"meddled": "was continued", "restless": "was continued"}, "TAMPERED(baseline)"),
        ({"restless": "did not stop within 10 s"}, "INVALID_BASELINE"),
        ({"alive": False, "restless": "did not stop within 10 s"}, None),
    ],
)
def test_a_baseline_whose_turns_were_not_its_own_is_told_and_replaced(happened, label, which: int) -> None:
    parties = [baseline(), baseline()]
    parties[which] = baseline(**happened)
    made = trial("host")
    made._lineup = SimpleNamespace(a=parties[0], a2=parties[1])  # type: ignore[assignment]
    verdict = made._undisturbed()
    assert (verdict.label if verdict else None) == label
    assert [party.worker.closed for party in parties] == [label is not None and i == which for i in (0, 1)]


@pytest.mark.parametrize(
    ("contract", "way", "made"),
    [
        ("graph", "held", "capture"),
        ("eager", "held", "settle"),
        ("collective", "held", "settle"),
        ("collective", "asked", None),
        ("host", "held", None),
        ("host", "direct", None),
    ],
)
def test_results_are_held_by_the_links_that_are_asked_for_them_at_the_end(contract, way, made) -> None:
    """Others are made for what is timed on a device that is held: they know nothing of those before."""
    lineup = SimpleNamespace(c=SimpleNamespace(way=way), capture=lambda: "capture", settle=lambda: "settle")
    one = trial(contract)
    one._lineup, one._held = lineup, reading(1)  # type: ignore[assignment]
    assert one._linked() == made
    assert (one._held is None) == (made is not None)
