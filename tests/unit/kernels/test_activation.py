"""activation: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from tests.pointwise_cases import activation_cases, check, check_gelu_tail
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

CASES = activation_cases([(1, 64), (3, 7), (40, 160), (2, 1500), (0, 8)])
# PyTorch rounds a quotient of 16 bits twice, which the gate of `check` does not grant.
ROUNDED_ONCE = [case for case in CASES if not case.name.startswith("log_sigmoid")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ROUNDED_ONCE, ids=str)
def test_torch(case, dtype):
    check(case, dtype, "torch")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_in_float32(case):
    check(case, torch.float32, "torch")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    (exact,) = case.answer(*args)
    torch.testing.assert_close(kernels.activation(*args, impl="reference"), exact, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_large_values_stay_finite(impl):
    """exp overflows float32 at 89: the logarithm of a sigmoid is then x itself, or 0."""
    x = torch.tensor([[-1e4, -200.0, 0.0, 200.0]])
    for name in ("gelu", "gelu_tanh", "mish", "quick_gelu", "silu"):
        y = kernels.activation(x, name, impl=impl)
        torch.testing.assert_close(y, torch.tensor([[0.0, 0.0, 0.0, 200.0]]))
    y = kernels.activation(x, "log_sigmoid", impl=impl)
    torch.testing.assert_close(y, torch.tensor([[-1e4, -200.0, -0.6931472, 0.0]]))


@pytest.mark.parametrize("impl", [TRITON])
def test_gelu_is_accurate_in_its_tail(impl):
    check_gelu_tail(impl)


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_gelu_at_the_ends(impl):
    """x^2 overflows float32 at 2e19."""
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 1e20, -1e20]])
    y = kernels.activation(x, "gelu", impl=impl)
    wanted = torch.tensor([[torch.nan, torch.inf, torch.nan, 3e38, 0.0, 1e20, 0.0]])
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)


def test_unknown_activation():
    names = "gelu, gelu_tanh, log_sigmoid, mish, quick_gelu, relu, relu2, sigmoid, silu, tanh"
    with pytest.raises(ValueError, match=names):
        kernels.activation(torch.ones(1, 4), "softsign")  # pyright: ignore
