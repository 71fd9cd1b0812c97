"""judge/selection.py: chosen indices may differ where their logits tie, and nowhere else."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.judge import compare
from fastkernels.judge.selection import misplaced

LOGITS = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
EXPECTED = torch.tensor([[1, 2]], dtype=torch.int32)


def wrong(chosen: list[int], logits=LOGITS, expected=EXPECTED) -> list[bool]:
    return misplaced(torch.tensor([chosen], dtype=torch.int32), expected, logits)[0].tolist()


def test_equal_logits_tie_in_either_order():
    assert wrong([1, 2]) == wrong([2, 1]) == [False, False]
    assert wrong([1, 0]) == [False, True]
    assert wrong([3, 2]) == [True, False]


@pytest.mark.parametrize("outside", [-1, 4, 2**30])
def test_ids_out_of_range_never_tie(outside):
    assert wrong([1, outside]) == [False, True]
    assert wrong([1, outside], torch.full((1, 4), 3.0)) == [False, True]


def test_one_expert_twice_is_wrong_though_each_ties():
    assert wrong([2, 2]) == [True, True]


def test_order_matters_between_different_logits():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    assert wrong([2, 1], logits) == [True, True]


def test_what_a_float32_softmax_cannot_tell_is_a_tie():
    # exp(-90) is below the smallest normal float32, exp(-80) is not.
    logits = torch.tensor([[0.0, -90.0, -95.0, -80.0]], dtype=torch.float64)
    assert wrong([0, 2], logits, torch.tensor([[0, 1]])) == [False, False]
    assert wrong([0, 1], logits, torch.tensor([[0, 3]])) == [False, True]
    near = torch.tensor([[1.0, 1.0 - 1e-7, 1.0 - 1e-5, 0.0]], dtype=torch.float64)
    assert wrong([1, 0], near, torch.tensor([[0, 1]])) == [False, False]
    assert wrong([0, 2], near, torch.tensor([[0, 1]])) == [False, True]


def test_bfloat16_neighbours_do_not_tie():
    logits = torch.tensor([[1.0, 1.0078125, 0.0]], dtype=torch.bfloat16)
    assert wrong([0, 1], logits, torch.tensor([[1, 0]])) == [True, True]


def outputs(weights: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"out.0": weights, "out.1": ids}


def test_the_gate_takes_ties_where_it_is_told_the_logits():
    logits = torch.tensor([[2.0, 2.0, 2.0, 0.0], [0.0, 1.0, 5.0, 1.0]])
    baseline = outputs(*kernels.topk_softmax(logits, 2, True))
    truth = outputs(*kernels.topk_softmax(logits.double(), 2, True, impl="reference"))
    tied = outputs(baseline["out.0"], torch.tensor([[2, 0], [2, 3]], dtype=torch.int32))
    scores = {"out.1": logits}
    assert compare.Standard(baseline, truth).compare(tied, scores).passed
    assert compare.Standard(baseline, truth).compare(tied).verdict.label == "WRONG(value)"
    other = outputs(baseline["out.0"], torch.tensor([[0, 1], [2, 0]], dtype=torch.int32))
    found = compare.Standard(baseline, truth).compare(other, scores).verdict
    assert found.label == "WRONG(value)"
    assert "1 of 4" in found.failure.message
    # The baseline is held to the same rule, and weights are judged as values whatever the ids are.
    assert compare.Standard(other, truth).compare(baseline, scores).verdict.label == "INVALID_BASELINE"
    heavier = outputs(baseline["out.0"] * 1.001, baseline["out.1"])
    assert not compare.Standard(baseline, truth).compare(heavier, scores).passed
