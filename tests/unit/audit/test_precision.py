"""Rounding is the formats' own; other orders of summation lose nothing; narrow sums do."""

from __future__ import annotations

import pytest
import torch

from fastkernels.audit.precision import narrow_sums, narrower, other_order, rounded


def test_seven_bits_are_bfloat16() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e3
    assert torch.equal(rounded(x, 7), x.bfloat16().float())
    assert torch.equal(rounded(x, 23), x)


def test_what_is_not_finite_stays() -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    torch.testing.assert_close(rounded(x, 3), x, equal_nan=True)


def matrices(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(17, 512, generator=generator) for _ in range(2))
    return a.to(dtype), b.to(dtype)


@pytest.mark.parametrize("batched", [False, True])
def test_another_order_is_as_right_and_not_the_same(batched: bool) -> None:
    a, b = (x[None] if batched else x for x in matrices())
    exact = a.double() @ b.double().mT
    with other_order():
        product, total, soft = a @ b.mT, a.mean(-1), a.softmax(-1)
    assert not torch.equal(product, a @ b.mT)
    for found, right in ((product, exact), (total, a.double().mean(-1)), (soft, a.double().softmax(-1))):
        assert (found - right).norm() / right.norm() < 1e-6


def test_a_bias_is_added_once() -> None:
    a, b = matrices()
    bias = torch.arange(17.0)
    with other_order():
        found = torch.nn.functional.linear(a, b, bias)
    torch.testing.assert_close(found, a @ b.T + bias, rtol=1e-4, atol=1e-4)


def test_sums_of_integers_stay_integers() -> None:
    with other_order():
        found = (torch.arange(10) > 3).sum(0)
    assert found.dtype == torch.int64
    assert int(found) == 6


def test_narrow_sums_lose_what_they_add_up() -> None:
    a, b = matrices(torch.bfloat16)
    exact = a.double() @ b.double().T
    with narrow_sums(torch.bfloat16):
        narrow = a @ b.T
    right = (narrow.double() - exact).norm() / (((a @ b.T).double() - exact).norm())
    assert right > 2


def test_a_sum_of_a_few_is_no_sum_in_parts() -> None:
    """Two experts' outputs are added in one step: no partial sum is rounded, in float64 either."""
    x = torch.randn(7, 2, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with narrow_sums(torch.bfloat16):
        few = x.sum(1)
        many = x.reshape(7, 128).sum(1)
    assert torch.equal(few, x.sum(1))
    assert not torch.allclose(many, x.reshape(7, 128).sum(1), rtol=1e-4)


def test_arithmetic_is_narrow_and_copies_are_not() -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(2))
    with narrower(torch.float32):
        computed, copied = x + 1, x.clone()
        x_in_place = x.clone().mul_(3)
    assert torch.equal(computed, rounded(x + 1, 10))
    assert torch.equal(x_in_place, rounded(x * 3, 10))
    assert torch.equal(copied, x)


@pytest.mark.parametrize(
    ("dtype", "narrow", "bits"),
    [(torch.float64, torch.float32, 23), (torch.float32, torch.float16, 10), (torch.float16, None, 7)],
)
def test_roundings_are_those_of_formats(dtype: torch.dtype, narrow: torch.dtype | None, bits: int) -> None:
    """With ties to even: an eighth of all float16 numbers lies in the middle of two with seven bits."""
    x = torch.arange(1, 2**15, dtype=torch.int16).view(torch.float16)
    x = x[x.isfinite() & (x >= torch.finfo(torch.float16).smallest_normal)].to(dtype)
    if dtype != torch.float16:
        x = torch.cat([x / 3, x * 0.3])
        x = x[(x > 1e-4) & (x < 6e4)]
    expected = x.to(narrow).to(dtype) if narrow else x.float().bfloat16().to(dtype)
    assert torch.equal(rounded(x, bits), expected)
    assert torch.equal(rounded(-x, bits), -expected)
