"""linear: every implementation on this machine against an einsum in float64."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from tests.pointwise_cases import check, linear_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

CASES = linear_cases([(1, 64, 96), (7, 33, 5), (0, 8, 4), (20, 300, 17)])
# More inputs than one tile has, and an end that fills none; rows that are no power of two.
FEW_ROWS = linear_cases([(1, 4096, 3), (1, 4100, 5), (3, 1500, 9), (8, 700, 6), (0, 8, 4)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", FEW_ROWS, ids=str)
@pytest.mark.parametrize("impl", [TRITON])
def test_few_rows_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_is_not_served_says_why(impl):
    x, weight = torch.ones(9, 4), torch.ones(5, 4)
    with pytest.raises(KernelError, match="serves up to 8 rows, not 9"):
        kernels.linear(x, weight, impl=impl)
    with pytest.raises(KernelError, match="contiguous last dimension"):
        kernels.linear(x[:1], torch.ones(4, 5).T, impl=impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    torch.testing.assert_close(
        kernels.linear(*args, impl="reference"), case.answer(*args)[0], rtol=1e-12, atol=1e-12
    )


def test_more_dimensions_and_no_bias_by_default():
    x, weight = torch.ones(2, 3, 4), torch.ones(5, 4)
    assert torch.equal(kernels.linear(x, weight), torch.full((2, 3, 5), 4.0))
