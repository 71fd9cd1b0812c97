"""softcap: every implementation on this machine against math.tanh, and what it does at the ends."""

import math

import pytest
import torch

from fastkernels import kernels
from tests.pointwise_cases import KernelCase, check, randn
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ALL = [REFERENCE, TORCH, TRITON]


def case(*shape: int, cap: float = 30.0, scale: float = 20.0) -> KernelCase:
    def answer(x, cap):
        flat = [cap * math.tanh(value / cap) for value in x.double().flatten().tolist()]
        return (torch.tensor(flat, dtype=torch.float64).view(x.shape),)

    return KernelCase("softcap", f"{shape}", lambda dt: (randn(*shape, dtype=dt, scale=scale), cap), answer)


CASES = [case(3, 700), case(0, 5), case(2, 3, 5, cap=0.5), case(4, 64, scale=1e-3), case(2, 640, scale=200)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_against_the_formula(case, impl, dtype):
    if impl == "torch" and dtype != torch.float32:
        assert "16-bit" in str(kernels.registered["softcap"].why_not("torch", case.make(dtype)))
        return
    check(case, dtype, impl)


@pytest.mark.parametrize("impl", ALL)
def test_the_ends_and_where_both_formulas_meet(impl):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 1e30, -1e30, 1e-30, 0.3499, 0.3501, -0.35])
    y = kernels.softcap(x, 1.0, impl=impl)
    expected = torch.tensor([math.tanh(value) for value in x.tolist()])
    torch.testing.assert_close(y, expected, rtol=3e-7, atol=0, equal_nan=True)


def test_strided_rows_and_a_cap_that_is_no_bound():
    x = randn(4, 12, dtype=torch.float32)[:, 2:7]
    assert kernels.softcap(x, 2.0).is_contiguous()
    assert torch.equal(kernels.softcap(x, 2.0), kernels.softcap(x.clone(), 2.0))
    with pytest.raises(ValueError, match="above 0, not 0"):
        kernels.softcap(x, 0.0)
