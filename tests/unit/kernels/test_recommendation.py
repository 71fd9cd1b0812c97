"""embedding_bag, dot_interaction, sparse_mm and pair_dot: every implementation on this machine against loops
in float64."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels import registered
from tests.pointwise_cases import check, randn
from tests.recommendation_cases import bag_cases, interaction_cases, pair_cases, sparse_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each = pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])


@each
@each_dtype
@pytest.mark.parametrize("case", bag_cases(), ids=str)
def test_bags(case, dtype, impl):
    check(case, dtype, impl)


@each
@each_dtype
@pytest.mark.parametrize("case", interaction_cases(), ids=str)
def test_interaction(case, dtype, impl):
    check(case, dtype, impl)


@each
@each_dtype
@pytest.mark.parametrize("case", [*sparse_cases("sparse_mm"), *sparse_cases("sparse_mm_add")], ids=str)
def test_sparse_mm(case, dtype, impl):
    if impl == "torch" and dtype.itemsize == 2:
        reason = registered[case.kernel].why_not(impl, case.make(dtype))
        assert "float32 and float64 on a CPU" in str(reason)
        return
    check(case, dtype, impl)


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
@each_dtype
@pytest.mark.parametrize("case", pair_cases(), ids=str)
def test_pairs(case, dtype, impl):
    """A score is a row of its own here, and may be close to zero: errors are of the longest product."""
    x, pairs = case.make(dtype)
    exact = case.answer(x, pairs)[0]
    found = kernels.pair_dot(x, pairs, impl=impl)
    assert (found.dtype, found.shape) == (dtype, exact.shape)
    torch.testing.assert_close(
        found.double(), exact, rtol=0, atol=float(2 * torch.finfo(dtype).eps * exact.abs().max())
    )


@each
def test_ids_that_no_bag_holds_are_not_read(impl):
    weight = randn(7, 16, dtype=torch.float32)
    weight[6] = torch.nan
    ids, offsets = torch.tensor([1, 2, 6]), torch.tensor([0, 1, 2])
    found = kernels.embedding_bag(ids, offsets, weight, 2, "mean", impl=impl)
    assert torch.equal(found, weight[[1, 2]][None])


def test_what_does_not_fit_is_named():
    ids, offsets, weight = torch.tensor([1, 2]), torch.tensor([0, 1, 2]), randn(7, 16, dtype=torch.float32)
    with pytest.raises(ValueError, match="mode must be sum or mean, not 'max'"):
        kernels.embedding_bag(ids, offsets, weight, 2, "max")
    with pytest.raises(ValueError, match="3 offsets are not those of 3 features"):
        kernels.embedding_bag(ids, offsets, weight, 3, "sum")
    with pytest.raises(ValueError, match=r"sparse must be \[2, F, 16\]"):
        kernels.dot_interaction(weight[:2], torch.zeros(2, 3, 8))


def test_fbgemm_says_what_it_declines():
    """It is installed on GPU machines alone; what its vectors do not divide is refused before it loads."""
    fbgemm = registered["embedding_bag"].implementation("fbgemm")
    assert fbgemm is not None
    assert fbgemm.requires == ("fbgemm_gpu",)
    assert fbgemm.unsupported is not None
    bags = (torch.tensor([1]), torch.tensor([0, 1]))
    for table, says in (
        (torch.zeros(3, 8, dtype=torch.float16), "serves float32 tables"),
        (torch.zeros(3, 6), "multiple of 4"),
    ):
        assert says in str(fbgemm.unsupported(*bags, table, 1, "sum"))


def test_operators_agree_with_their_schema_and_fake():
    sparse = [sparse_cases(name)[0] for name in ("sparse_mm", "sparse_mm_add")]
    for case in (bag_cases()[0], interaction_cases()[0], pair_cases()[0], *sparse):
        op = getattr(torch.ops.fastkernels, case.kernel).default
        torch.library.opcheck(op, case.make(torch.float32), test_utils=("test_schema", "test_faketensor"))
