"""Inputs moved as roundings move them, piece by piece."""

import pytest
import torch

from fastkernels.judge import movements
from fastkernels.judge.movements import Moved, of_equal_sums, of_sums, of_values

STEP = 2**-8  # half a unit in the last place of bfloat16


@pytest.mark.parametrize("movement", [of_values, of_sums, of_equal_sums])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pieces_do_not_show(movement, dtype, monkeypatch):
    x = torch.randn(50, 60, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[7] = x[7, 0]
    before = x.clone()
    whole = movement(x, STEP, 3)
    monkeypatch.setattr(movements, "PIECE", 100)
    assert torch.equal(movement(x, STEP, 3), whole)
    assert not torch.equal(movement(x, STEP, 4), whole)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_that_are_looked_up_move_as_others_do(dtype):
    """A matrix of 16 bits in another layout, large enough for a table, against its rows, which are not."""
    x_DR = torch.randn(400, 300, generator=torch.Generator().manual_seed(0)).to(dtype).T
    assert x_DR.numel() > 2**16 > x_DR[0].numel()
    assert torch.equal(of_values(x_DR, STEP, 3), torch.stack([of_values(row, STEP, 3) for row in x_DR]))
    assert torch.equal(of_values(x_DR, STEP, 3), of_values(x_DR.double(), STEP, 3))


def test_sums_of_equal_values_move_where_values_are_equal():
    x = torch.randn(4, 60, generator=torch.Generator().manual_seed(0))
    x[2] = x[2, 0]
    moved = of_equal_sums(x, STEP, 0) != x.double()
    assert moved[2].any()
    assert not moved[[0, 1, 3]].any()


@pytest.mark.parametrize("movement", [of_values, of_sums, of_equal_sums])
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0), (5,), (2, 3, 4)])
def test_every_shape_stays_as_it_is(movement, shape):
    assert movement(torch.ones(shape), STEP, 0).shape == shape


def test_inputs_are_moved_as_they_are_asked_for_and_kept_as_they_round():
    inputs = {"x": torch.linspace(1, 2, 50).bfloat16(), "logits": torch.ones(3), "ids": torch.arange(3)}
    moved = Moved(inputs, {"logits"}, STEP, of_values, 0)
    assert moved["logits"] is inputs["logits"]
    assert moved["ids"] is inputs["ids"]
    assert set(moved.rounded) == {"logits", "ids"}
    wide = moved["x"]
    assert torch.equal(moved.rounded["x"], wide.bfloat16())
    assert not moved.is_lost
    little = Moved(inputs, {"logits"}, 1e-7, of_values, 0)
    assert dict(little).keys() == inputs.keys()
    assert little.is_lost
