"""layer_norm and add_layer_norm: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from tests.pointwise_cases import add_layer_norm_cases, check, layer_norm_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

SHAPES = [(1, 64), (3, 7), (40, 160), (2, 1500), (3, 1), (0, 8)]
CASES = [*layer_norm_cases(SHAPES), *add_layer_norm_cases(SHAPES)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    out = kernels.registered[case.kernel](*args, impl="reference")
    for got, exact in zip(out if isinstance(out, tuple) else (out,), case.answer(*args), strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_a_large_mean_does_not_hide_the_variance(impl):
    """mean(x^2) - mean(x)^2 in float32 would be 0 or negative here."""
    x = torch.tensor([[4096.0 + i % 2 for i in range(64)]])
    y = kernels.layer_norm(x, torch.ones(64), torch.zeros(64), 1e-6, impl=impl)
    torch.testing.assert_close(y, (x - 4096.5) * 2, rtol=1e-4, atol=0)
