"""activation: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from tests.pointwise_cases import activation_cases, check
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

CASES = activation_cases([(1, 64), (3, 7), (40, 160), (2, 1500), (0, 8)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_large_values_stay_finite(impl):
    x = torch.tensor([[-1e4, -100.0, 0.0, 100.0]])
    for name in ("gelu", "gelu_tanh"):
        torch.testing.assert_close(
            kernels.activation(x, name, impl=impl), torch.tensor([[0.0, 0.0, 0.0, 100.0]])
        )


def test_unknown_activation():
    with pytest.raises(ValueError, match="gelu, gelu_tanh"):
        kernels.activation(torch.ones(1, 4), "relu")  # pyright: ignore
