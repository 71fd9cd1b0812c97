"""sample_grid: every implementation on this machine against torch's interpolation with aligned corners in
float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastkernels import kernels
from tests.pointwise_cases import worst_row_error
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ALL = [REFERENCE, TORCH, TRITON]
GRIDS = [(2, 2), (2, 9), (9, 2), (4, 6), (5, 7), (13, 3)]


def places(rows: int, columns: int) -> Tensor:
    """Of all points of a grid, from the first to the last of the table."""
    y, x = torch.arange(rows) / (rows - 1), torch.arange(columns) / (columns - 1)
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)


def interpolated(table_MND: Tensor, grid: tuple[int, int]) -> Tensor:
    image = table_MND.double().permute(2, 0, 1)[None]
    made = torch.nn.functional.interpolate(image, grid, mode="bilinear", align_corners=True)
    return made[0].flatten(1).T


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_against_torch(impl: str, dtype: torch.dtype):
    """A table that is not square, of features that fill no tile."""
    table = torch.randn(5, 7, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    out = kernels.sample_grid(torch.cat([places(*grid) for grid in GRIDS]), table, impl=impl)
    assert out.dtype == dtype
    assert out.is_contiguous()
    wanted = torch.cat([interpolated(table, grid) for grid in GRIDS])
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    # A place is rounded in float32, and so is what it is of the table's side.
    assert worst_row_error(out, wanted) <= 2 * 7 * torch.finfo(torch.float32).eps + rounding


@pytest.mark.parametrize("impl", ALL)
def test_the_tables_own_points_and_its_last_one(impl: str):
    table = torch.randn(5, 5, 24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(kernels.sample_grid(places(5, 5), table, impl=impl), table.flatten(0, 1))


def test_reference_is_exact_in_float64():
    table = torch.randn(6, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = kernels.sample_grid(places(4, 7).double(), table, impl="reference")
    torch.testing.assert_close(out, interpolated(table, (4, 7)), rtol=0, atol=1e-6)  # float32 places
    with pytest.raises(ValueError, match=r"places must be \[T, 2\], not \[8\]"):
        kernels.sample_grid(torch.zeros(8), table)
