"""resize_grid: every implementation on this machine against torch's interpolation in float64."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from tests.encoder_cases import resized
from tests.pointwise_cases import worst_row_error
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

SIZES = {
    "own": [(16, 16)],
    "default": [(24, 24)],
    "high": [(32, 32)],
    "wide": [(9, 30)],
    "smaller": [(5, 7), (2, 2), (1, 1)],
    "lines": [(1, 6), (6, 1), (1, 20), (20, 1)],
    "packed": [(4, 4), (2, 18), (1, 1), (5, 3), (17, 1), (4, 4)],
}
# A program a token: slow in Triton's interpreter.
INTERPRETED = ("smaller", "lines", "packed")
each = pytest.mark.parametrize("name", SIZES)
SERVED = [pytest.param(*impl.values, name, id=f"{impl.id}-{name}", marks=impl.marks)
          for impl in (REFERENCE, TORCH, TRITON)
          for name in (INTERPRETED if impl is TRITON else SIZES)]  # fmt: skip


def arguments(name: str, dtype: torch.dtype, side: int = 16) -> tuple[torch.Tensor, torch.Tensor, int]:
    table = torch.randn(side, side, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    sizes = torch.tensor(SIZES[name])
    return table, sizes, int(sizes.prod(1).sum())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("impl", "name"), SERVED)
def test_against_torch(impl, name, dtype):
    table, sizes, tokens = arguments(name, dtype)
    out = kernels.resize_grid(table, sizes, tokens, impl=impl)
    assert out.shape == (tokens, 24)
    assert out.dtype == dtype
    assert out.is_contiguous()
    # A centre is as large as the table, 16: float32 rounds it by 16 eps of a weight, on each axis.
    # torch's own float32 result is wrong by up to 3.1e-6 here.
    limit = 2 * 16 * torch.finfo(torch.float32).eps + (torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)
    assert worst_row_error(out, resized(table, SIZES[name])) <= limit


@each
def test_reference_is_exact_in_float64(name):
    args = arguments(name, torch.float64)
    torch.testing.assert_close(
        kernels.resize_grid(*args, impl="reference"), resized(args[0], SIZES[name]), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_the_tables_own_grid_gives_the_table(impl):
    table = torch.randn(5, 5, 24, generator=torch.Generator().manual_seed(0))
    sizes, tokens = torch.tensor([[5, 5]]), 25
    assert torch.equal(kernels.resize_grid(table, sizes, tokens, impl=impl), table.flatten(0, 1))


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_tables_need_not_be_square(impl):
    table = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    sizes = [(4, 7), (2, 2)]
    out = kernels.resize_grid(table, torch.tensor(sizes), 32, impl=impl)
    torch.testing.assert_close(out.double(), resized(table, sizes), rtol=0, atol=1e-5)


def test_reference_counts_the_tokens():
    table, sizes, tokens = arguments("packed", torch.float32)
    with pytest.raises(ValueError, match=f"num_tokens is {tokens + 1}, the sizes have {tokens}"):
        kernels.resize_grid(table, sizes, tokens + 1, impl="reference")
