"""Rows of a rotary table by positions on three axes: every implementation against the equations."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels.mrope_table import axes
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

SECTIONS = [((2, 3, 3), False), ((4, 2, 2), True), ((5, 1, 6), False), ((24, 20, 20), True)]


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("section", "interleaved"), SECTIONS)
def test_rows_are_copied(impl: str, dtype: torch.dtype, section: tuple[int, ...], interleaved: bool):
    generator = torch.Generator().manual_seed(0)
    width = sum(section)
    table_PR = torch.randn(101, 2 * width, generator=generator).to(dtype)
    axis_R = axes(section, interleaved) * 2
    for tokens in (0, 1, 37):
        positions_T3 = torch.randint(0, 101, (tokens, 3), generator=generator)
        wanted_TR = table_PR.new_empty(tokens, 2 * width)
        for t in range(tokens):
            for j, axis in enumerate(axis_R):
                wanted_TR[t, j] = table_PR[positions_T3[t, axis], j]
        for positions_3T in (positions_T3.T, positions_T3.T.int().contiguous()):
            found_TR = kernels.mrope_table(positions_3T, table_PR, section, interleaved, impl=impl)
            assert torch.equal(found_TR, wanted_TR)


def test_axes_of_the_frequencies():
    """Chunked: 16, 24 and 24 of 64; interleaved: turns that stop at 60."""
    assert axes((16, 24, 24), False) == [0] * 16 + [1] * 24 + [2] * 24
    assert axes((24, 20, 20), True) == [0, 1, 2] * 20 + [0] * 4


def test_what_does_not_fit():
    table_PR = torch.zeros(9, 16)
    for section, positions_3T in (((2, 3, 4), torch.zeros(3, 5).long()), ((2, 6), torch.zeros(3, 5).long())):
        with pytest.raises(ValueError, match="expected 3 numbers with sum 8"):
            kernels.mrope_table(positions_3T, table_PR, section)
    with pytest.raises(ValueError, match=r"positions must be \[3, T\], not \[5\]"):
        kernels.mrope_table(torch.zeros(5).long(), table_PR, (2, 3, 3))
