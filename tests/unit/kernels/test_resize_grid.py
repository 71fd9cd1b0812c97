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
    "smaller": [(3, 4), (2, 2), (1, 1)],
    "lines": [(1, 3), (3, 1), (1, 7), (7, 1)],
    "packed": [(2, 2), (2, 7), (1, 1), (4, 3), (6, 1), (2, 2)],
}
# A program a token, a step an entry that reaches it: in Triton's interpreter a small table, too.
INTERPRETED = ("smaller", "lines", "packed")
each = pytest.mark.parametrize("name", SIZES)
SERVED = [pytest.param(*impl.values, name, id=f"{impl.id}-{name}", marks=impl.marks)
          for impl in (REFERENCE, TORCH, TRITON)
          for name in (INTERPRETED if impl is TRITON else SIZES)]  # fmt: skip


def side_of(name: str) -> int:
    return 5 if name in INTERPRETED else 16


def arguments(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, int]:
    side = side_of(name)
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
    # A centre is as large as the table's side: of 16, float32 rounds it by 16 eps of a weight, on each axis.
    # torch's own float32 result is wrong by up to 3.1e-6 there.
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    limit = 2 * side_of(name) * torch.finfo(torch.float32).eps + rounding
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
    sizes = [(2, 7), (4, 2)]
    out = kernels.resize_grid(table, torch.tensor(sizes), 22, impl=impl)
    torch.testing.assert_close(out.double(), resized(table, sizes), rtol=0, atol=1e-5)


def test_reference_counts_the_tokens():
    table, sizes, tokens = arguments("packed", torch.float32)
    with pytest.raises(ValueError, match=f"num_tokens is {tokens + 1}, the sizes have {tokens}"):
        kernels.resize_grid(table, sizes, tokens + 1, impl="reference")
