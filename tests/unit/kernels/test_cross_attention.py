"""cross_attention: every implementation on this machine against the plain formula in float64."""

from __future__ import annotations

import pytest

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels.cross_attention import paged
from tests.cross_case import cross_case
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ROWS = {
    "decode": ([1, 1, 1, 1], 50),
    "one": ([1], 7),
    "prompts": ([4, 4], 33),
    "mixed": ([1, 1, 7, 1, 20], 50),
    "tiles": ([17, 1, 40], 64),
}
each = pytest.mark.parametrize("rows", ROWS.values(), ids=list(ROWS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(rows, impl, dtype):
    case = cross_case(*rows, dtype=dtype)
    case.check(kernels.cross_attention(*case.args, impl=impl))


@pytest.mark.parametrize("head_dim", [8, 40])
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_head_dimensions_that_are_no_power_of_two(impl, head_dim):
    case = cross_case([3, 1], 20, num_heads=2, head_dim=head_dim)
    case.check(kernels.cross_attention(*case.args, impl=impl))


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_the_bound_of_the_queries_may_be_larger(impl):
    """A replayed graph knows only the longest row that it serves."""
    case = cross_case([3, 1, 2], 20)
    *tensors, scale, _ = case.args
    case.check(kernels.cross_attention(*tensors, scale, 16, impl=impl))


@pytest.mark.parametrize("keys", [50, 52, 64, 1500])
def test_pools_as_paged_caches(keys):
    """The function, without its device: blocks of a row follow one another."""
    case = cross_case([1, 1, 1], keys)
    if keys == 50:
        assert "blocks of 4 or more, not 50" in (paged.unsupported("cross_attention", *case.args) or "")
        return
    assert paged.unsupported("cross_attention", *case.args) is None
    case.check(paged.cross_attention(*case.args))
    assert paged.block_size(keys) == {52: 4, 64: 16, 1500: 4}[keys]
    assert "one query" in (paged.unsupported("", *cross_case([1, 2], keys).args) or "")


def test_paged_needs_a_gpu():
    with pytest.raises(KernelError, match="needs cuda"):
        kernels.cross_attention(*cross_case([1], 16).args, impl="paged")
