"""linear_glu: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from tests.pointwise_cases import check, linear_glu_cases
from tests.unit.kernels.implementations import GEMV, REFERENCE, TRITON_DTYPE

# `parts` rounds up to four times, which a row of few outputs would not average out.
CASES = linear_glu_cases([(1, 64, 96), (7, 33, 45), (0, 8, 4)])
# Inputs of one tile, of several, and with a tail; outputs that end within a program's.
ONE_ROW = linear_glu_cases(
    [(1, 4096, 3), (1, 2100, 5), (1, 1500, 9), (1, 7, 6), (0, 8, 4)], two_strides=False
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, "parts"])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", ONE_ROW, ids=str)
@pytest.mark.parametrize("impl", [GEMV])
def test_one_row_against_the_formula(case, impl):
    check(case, TRITON_DTYPE, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    torch.testing.assert_close(
        kernels.linear_glu(*args, impl="reference"), case.answer(*args)[0], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("impl", [GEMV])
def test_what_is_not_served_says_why(impl):
    x, weight = torch.ones(5, 4).half(), torch.ones(6, 4).half()
    with pytest.raises(KernelError, match="serves one row, not 5"):
        kernels.linear_glu(x, weight, None, "silu", impl=impl)


def test_bad_calls():
    x, weight = torch.ones(5, 4), torch.ones(6, 4)
    with pytest.raises(ValueError, match="gelu_tanh"):
        kernels.linear_glu(x, weight, None, "relu")  # pyright: ignore
