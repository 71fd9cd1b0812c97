"""dense_attention: every implementation on this machine against the plain formula in float64."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels.dense_attention import reference
from fastkernels.kernels.plans import plan_scope
from tests.encoder_cases import dense_case
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ROWS = {
    "one": ([7], [7]),
    "equal": ([16, 16, 16], [16, 16, 16]),
    "ragged": ([5, 70, 1, 33], [5, 70, 1, 33]),
    "single-tokens": ([1, 1, 1], [1, 1, 1]),
    "pooled": ([1, 1, 1, 1], [5, 70, 1, 33]),
    "pooled-equal": ([1, 1], [36, 36]),
    "cross": ([3, 20, 2], [40, 1, 17]),
    "some-without-queries": ([0, 4, 0, 3], [2, 4, 5, 1]),
    "tiles": ([129, 64, 1], [129, 64, 1]),
}
each = pytest.mark.parametrize("rows", ROWS.values(), ids=list(ROWS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(rows, impl, dtype):
    case = dense_case(*rows, dtype=dtype)
    case.check(kernels.dense_attention(*case.args, impl=impl))


@pytest.mark.parametrize("head_dim", [8, 40, 72])
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_head_dimensions_that_are_no_power_of_two(impl, head_dim):
    case = dense_case([9, 4], [9, 4], num_heads=2, head_dim=head_dim)
    case.check(kernels.dense_attention(*case.args, impl=impl))


@each
def test_reference_is_exact_in_float64(rows):
    case = dense_case(*rows, dtype=torch.float64)
    case.check(kernels.dense_attention(*case.args, impl="reference"))


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_bounds_of_the_lengths_may_be_larger(impl):
    """A replayed graph knows only the longest row that it serves."""
    case = dense_case([5, 9], [5, 9])
    *tensors, scale, _, _ = case.args
    case.check(kernels.dense_attention(*tensors, scale, 64, 64, impl=impl))


def test_lengths_are_read_once_in_a_scope():
    case = dense_case([5, 9], [5, 9])
    with plan_scope():
        case.check(kernels.dense_attention(*case.args, impl="reference"))
        case.query_starts_B1.set_(torch.tensor([0, 9, 14], dtype=torch.int32))  # other storage: a new plan
        assert case.error(kernels.dense_attention(*case.args, impl="reference")) > 0.1


def test_reference_in_tiles_of_queries(monkeypatch):
    monkeypatch.setattr(reference, "MAX_ELEMENTS", 3 * 70 * 4)
    case = dense_case([70, 5], [70, 5])
    case.check(kernels.dense_attention(*case.args, impl="reference"))
