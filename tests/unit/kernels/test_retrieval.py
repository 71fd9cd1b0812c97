"""Kernels of text encoders and retrieval: all implementations on this machine against the formula."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from tests.pointwise_cases import check
from tests.retrieval_cases import MASKED, all_cases, late_interaction_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON


@pytest.mark.parametrize("case", all_cases(), ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(case, impl):
    for dtype in DTYPES:
        check(case, dtype, impl)


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    (exact,) = case.answer(*args)
    torch.testing.assert_close(
        kernels.registered[case.kernel](*args, impl="reference"), exact, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_float16_has_no_epsilon_of_its_own(impl):
    """1e-12 is 0 there: a row of zeros would be 0/0."""
    assert torch.equal(kernels.l2_norm(torch.zeros(2, 8).half(), impl=impl), torch.zeros(2, 8).half())


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_padding_is_not_a_row_of_zeros(impl):
    """Where all similarities are negative a row of zeros would be the best one; and a document of padding
    alone has the least score there is."""
    query, docs = torch.ones(3, 16), -torch.ones(4, 16)
    keep = torch.tensor([True, False, False, False])
    scores = kernels.late_interaction(query, docs, None, keep, 2, impl=impl)
    assert scores.tolist() == [-48.0, 3 * MASKED]


def test_further_rows_never_lower_a_score_and_their_order_does_not_matter():
    query, docs, starts, *_ = late_interaction_cases()[2].make(torch.float32)
    scores = kernels.late_interaction(query, docs, starts)
    fewer = torch.cat([docs[:5], docs[6:]])
    shorter = kernels.late_interaction(query, fewer, starts - torch.tensor([0, 0, 0, 1, 1, 1]).int())
    assert (shorter <= scores).all()
    mixed = torch.cat([docs[:5].flip(0), docs[5:]])
    assert torch.equal(kernels.late_interaction(query, mixed, starts), scores)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"length": 3}, "4 rows are no whole number of documents of 3"),
        ({"length": 0}, "documents of 0"),
        ({"query_LK": torch.ones(3, 8)}, r"\[3, 8\], \[4, 16\]"),
        ({"query_LK": torch.ones(0, 16)}, "0 tokens"),
        ({"keep_S": torch.ones(3, dtype=torch.bool)}, r"keep must be bool \[4\]"),
    ],
)
def test_shapes_that_do_not_fit(change, says):
    given = {"query_LK": torch.ones(3, 16), "docs_SK": torch.ones(4, 16), "length": 2} | change
    with pytest.raises(ValueError, match=says):
        kernels.late_interaction(**given)


def test_a_mask_of_another_shape():
    with pytest.raises(ValueError, match=r"keep must be bool \[4\]"):
        kernels.l2_norm(torch.ones(4, 8), torch.ones(4, 1, dtype=torch.bool))
