"""What a mistake costs, and why it may be none in a case."""

from __future__ import annotations

import math

import pytest
import torch

from fastkernels.audit.effects import Effect, Lost, effect
from fastkernels.audit.subject import Change
from fastkernels.judge.bounds import Excuse
from fastkernels.judge.distance import Errors

AT, OTHER = ("normal", "out.0"), ("extreme", "out.0")
SUMS = Change("mutant", "sums in the dtype of the result", is_rounding=True)
STALE = Change("input", "arg.x of the call before")
SIXTEEN_ROUNDINGS = 0.0625  # of bfloat16


def excuse(moved_R: torch.Tensor, apart_R: torch.Tensor | None = None) -> Excuse:
    return Excuse(Errors(0.0, 0.0), 0.0, moved_R, moved_R, 0.0, apart_R)


def lost(off: float = 0.0, has_parts: bool = False) -> Lost:
    return Lost(torch.bfloat16, has_parts, {AT: off, OTHER: 1.0})


def moving(by: float) -> dict:
    return {AT: Effect(by, by), OTHER: Effect(by, by)}


def test_rows_that_roundings_move_as_far_show_nothing() -> None:
    """A row next to nothing moves by a tenth where its inputs move by a rounding, others by a thousandth."""
    right = torch.ones(4, 8, dtype=torch.float64)
    m_R = torch.tensor([0.1, 0.001, 0.001, 0.001], dtype=torch.float64)
    changed = right * torch.tensor([[1.19], [1.0], [1.0], [1.0]], dtype=torch.float64)
    assert effect(changed, right, torch.bfloat16, None).seen == pytest.approx(0.19)
    found = effect(changed, right, torch.bfloat16, excuse(m_R))
    assert (found.moved, found.seen) == (pytest.approx(0.19), 0)
    changed[1] *= 1.01
    assert effect(changed, right, torch.bfloat16, excuse(m_R)).seen == pytest.approx(0.01)
    apart_R = torch.tensor([False, True, False, False])
    assert effect(changed, right, torch.bfloat16, excuse(m_R, apart_R)).seen == 0


def test_other_integers_and_infinities_move_a_result_beyond_all_bounds() -> None:
    ids, values = torch.arange(4), torch.ones(2, 2, dtype=torch.float64)
    assert effect(ids + 1, ids, torch.bfloat16, None).seen == math.inf
    assert effect(values / 0, values, torch.bfloat16, None).seen == math.inf
    assert effect(values / 0, values, torch.bfloat16, None, error=0.03) == Effect(0.03, 0.03)
    assert effect(ids + 1, ids, torch.bfloat16, None, error=0.03).seen == math.inf
    assert effect(ids, ids, torch.bfloat16, None) == Effect(0.0, 0.0)


@pytest.mark.parametrize(
    ("by", "off", "excused"), [(0.05, 0.02, True), (0.05, 0.01, False), (0.07, 0.02, False)]
)
def test_few_bits_among_what_right_kernels_lose_are_no_mistake(by: float, off: float, excused: bool) -> None:
    """A kernel that rounds a product's factors in between loses what sums in few bits lose; up to 16
    roundings, and a baseline that is coarse on other inputs excuses nothing."""
    assert bool(lost(off).why(SUMS, moving(by))[0]) is excused
    assert lost(off).why(STALE, moving(by)) == ("", False)
    assert not lost(off).why(SUMS, moving(by))[1]


@pytest.mark.parametrize(
    ("by", "off", "excused"), [(0.05, 0.02, True), (0.05, 0.01, False), (0.07, 0.02, False)]
)
def test_any_mistake_in_a_module_among_what_right_kernels_lose_is_left_to_another_case(
    by: float, off: float, excused: bool
) -> None:
    reason, elsewhere = lost(off, has_parts=True).why(STALE, moving(by))
    assert (bool(reason), elsewhere) == (excused, excused)


def test_a_mistake_of_a_part_is_judged_there_and_a_stale_input_shown_by_another_case() -> None:
    module = lost(has_parts=True)
    for kind, elsewhere in (("mutant", False), ("input", True)):
        change = Change(kind, "a parameter", part_of="L1/linear")
        told, shown_elsewhere = module.why(change, moving(SIXTEEN_ROUNDINGS))
        assert told.endswith("here: judged as L1/linear")
        assert shown_elsewhere is elsewhere
        assert module.why(change, moving(1.01 * SIXTEEN_ROUNDINGS)) == ("", False)


def test_a_mistake_hidden_by_its_inputs_is_left_to_another_case() -> None:
    reason, elsewhere = lost().why(STALE, {AT: Effect(0.3, 0.0)})
    assert "in rows that roundings move as far" in reason
    assert elsewhere
