"""split_branches and join_branches: every implementation here against the formula in float64, and the fused
kernels against the norms one by one."""

import pytest
import torch
from torch import Tensor

from tests.pointwise_cases import Arguments, KernelCase, check, normalised, randn, run
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TRITON, TRITON_DTYPE

EPS = 1e-6
ALL = [REFERENCE, pytest.param("parts", id="parts"), TRITON]


def gains(dtype: torch.dtype, dim: int, count: int) -> list[Tensor]:
    return [randn(dim, dtype=dtype, seed=10 + i) + 1 for i in range(count)]


def split_case(rows: int, dim: int) -> KernelCase:
    def make(dtype: torch.dtype) -> Arguments:
        x, residual = randn(rows, dim, dtype=dtype), randn(rows, dim, dtype=dtype, seed=1, scale=3)
        return x, residual, *gains(dtype, dim, 4), EPS

    def answer(x: Tensor, residual: Tensor, weight: Tensor, *rest) -> tuple[Tensor, ...]:
        *weights, eps = rest
        h = residual.double() + normalised(x, weight, eps)
        return h, *(normalised(h, each, eps) for each in weights)

    return KernelCase("split_branches", f"T{rows}-D{dim}", make, answer)


def join_case(rows: int, dim: int) -> KernelCase:
    def make(dtype: torch.dtype) -> Arguments:
        three = [randn(rows, dim, dtype=dtype, seed=i, scale=1 + i) for i in range(3)]
        return *three, *gains(dtype, dim, 3), torch.tensor([0.7], dtype=dtype), EPS

    def answer(x1: Tensor, x2: Tensor, residual: Tensor, w1, w2, weight, scale, eps) -> tuple[Tensor]:
        both = normalised(x1, w1, eps) + normalised(x2, w2, eps)
        return ((residual.double() + normalised(both, weight, eps)) * scale.double(),)

    return KernelCase("join_branches", f"T{rows}-D{dim}", make, answer)


CASES = [make(*shape) for make in (split_case, join_case) for shape in ((1, 64), (3, 37), (5, 704), (0, 64))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("make", [split_case, join_case])
@pytest.mark.parametrize("impl", [TRITON])
def test_rounds_where_the_norms_do(impl, make):
    """Bit for bit but where squares were added in another order: a kernel that rounded less would give other
    last bits in a quarter of the elements."""
    case = make(7, 256)
    args = case.make(TRITON_DTYPE)
    for a, b in zip(run(case.kernel, args, impl), run(case.kernel, args, "reference"), strict=True):
        assert (a != b).float().mean() < 0.02
