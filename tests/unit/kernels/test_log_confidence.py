"""log_confidence: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TRITON


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 7), (5, 1), (2, 9001), (0, 8)])
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_against_the_formula(impl, rows, width, dtype):
    generator = torch.Generator().manual_seed(width)
    logits = (3 * torch.randn(rows, width, generator=generator)).to(dtype)
    ids = torch.randint(0, width, (rows,), generator=generator)
    found = kernels.log_confidence(logits, ids, impl=impl)
    wanted = logits.double().log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_probabilities_that_round_to_one_keep_their_order(impl):
    """A softmax in float32 is 1 for two of them. Equal largest logits are all counted."""
    others = torch.tensor([-20.0, -25.0, -30.0])
    logits = torch.stack([others, torch.zeros(3), torch.full((3,), -torch.inf)], dim=1)
    assert torch.equal(logits.softmax(-1)[1:, 1], torch.ones(2))
    found = kernels.log_confidence(logits, torch.ones(3, dtype=torch.int64), impl=impl)
    torch.testing.assert_close(found, -others.exp(), rtol=1e-5, atol=0)
    even = kernels.log_confidence(torch.full((1, 5), 2.0), torch.tensor([3]), impl=impl)
    torch.testing.assert_close(even, torch.tensor([0.2]).log())
