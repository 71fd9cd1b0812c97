"""glu: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from tests.pointwise_cases import check, glu_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

CASES = glu_cases([(1, 64), (3, 7), (40, 160), (2, 1500), (0, 8)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_against_the_formula(case):
    check(case, torch.float32, "torch")


def test_torch_declines_what_it_would_round_twice():
    with pytest.raises(KernelError, match="would round 16-bit activations before the product"):
        kernels.glu(torch.ones(1, 4, dtype=torch.bfloat16), "silu", impl="torch")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    torch.testing.assert_close(
        kernels.glu(*args, impl="reference"), case.answer(*args)[0], rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_large_gates_stay_finite(impl):
    """exp(-gate) overflows float32 at -100; the product is still 0, not NaN."""
    x = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 2.0, 2.0, 2.0, 2.0]])
    for activation in ("silu", "gelu", "gelu_tanh"):
        y = kernels.glu(x, activation, impl=impl)
        torch.testing.assert_close(y, torch.tensor([[0.0, 0.0, 0.0, 200.0]]))


def test_unknown_activation():
    with pytest.raises(ValueError, match="silu, gelu, gelu_tanh"):
        kernels.glu(torch.ones(1, 4), "relu")  # pyright: ignore
