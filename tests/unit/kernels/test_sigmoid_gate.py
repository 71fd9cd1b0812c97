"""sigmoid_gate: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from tests.pointwise_cases import check, sigmoid_gate_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

CASES = sigmoid_gate_cases([(1, 64), (3, 7), (40, 130), (2, 1500), (0, 8)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    (exact,) = case.answer(*args)
    actual = kernels.registered[case.kernel](*args, impl="reference")
    torch.testing.assert_close(actual, exact, rtol=1e-13, atol=1e-13)


def test_a_gate_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"gate must be \[2, 4\]"):
        kernels.sigmoid_gate(torch.ones(2, 4), torch.ones(2, 2))
