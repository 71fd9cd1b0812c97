"""Kernels of vision transformers: every implementation on this machine against the formulas in float64."""

import pytest
import torch

from tests.pointwise_cases import check, run
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TRITON
from tests.vision_cases import rope_by_feature_cases, scaled_add_cases, scaled_add_layer_norm_cases

SHAPES = [(1, 64), (3, 7), (40, 160), (2, 1500), (0, 8)]
# Heads and head sizes that are no powers of two, one pair alone, several programs of heads, no token.
ROTATIONS = rope_by_feature_cases([(1, 1, 2), (9, 4, 16), (5, 3, 12), (2, 33, 64), (0, 2, 8)])
SUMS = [*scaled_add_cases(SHAPES), *scaled_add_layer_norm_cases(SHAPES)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*SUMS, *ROTATIONS], ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", SUMS, ids=str)
def test_torch(case, dtype):
    check(case, dtype, "torch")


@pytest.mark.parametrize("case", [*SUMS, *ROTATIONS], ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    for found, exact in zip(run(case.kernel, args, "reference"), case.answer(*args), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)
