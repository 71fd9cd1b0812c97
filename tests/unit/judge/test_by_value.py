"""Functions of single values: many of 16 bits are looked up, and nothing tells."""

import pytest
import torch

from fastkernels.judge import by_value as module
from fastkernels.judge.by_value import by_value


def third(values):
    return values / 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 5), (2**16 + 5,), (300, 3, 100)])
def test_each_value_is_looked_at_in_float64(dtype, shape, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 1000)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = by_value(x, third, torch.float64)
    assert torch.equal(found, x.double() / 3)
    assert found.shape == x.shape
    assert by_value(x, third, dtype).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_layouts_and_what_is_no_number(dtype):
    x = torch.randn(400, 300, generator=torch.Generator().manual_seed(0)).to(dtype).T
    x[0, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    assert torch.equal(by_value(x, third, dtype).nan_to_num(7), (x.double() / 3).to(dtype).nan_to_num(7))


def test_values_of_sixteen_bits_are_computed_once():
    asked = []

    def counting(values):
        asked.append(values.numel())
        return values

    by_value(torch.zeros(2**17, dtype=torch.bfloat16), counting, torch.float64)
    by_value(torch.zeros(5, dtype=torch.bfloat16), counting, torch.float64)
    assert asked == [2**16, 5]
