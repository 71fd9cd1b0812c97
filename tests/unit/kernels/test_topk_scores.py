"""topk_scores: every implementation on this machine against a sort in float64."""

import pytest
import torch

from fastkernels import kernels
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ALL = [REFERENCE, TORCH, TRITON]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(37, 60, 4), (5, 256, 8), (3, 7, 7), (0, 8, 2)])
@pytest.mark.parametrize("impl", ALL)
def test_the_best_by_choice_with_their_scores(impl, tokens, experts, top_k, renormalize, dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(tokens, experts, generator=generator).to(dtype)
    choice = torch.stack([torch.randperm(experts, generator=generator) for _ in range(tokens)] or [scores.T])
    choice = choice.reshape(tokens, experts).to(dtype)  # whole numbers: no two are close
    weights, ids = kernels.topk_scores(scores, choice, top_k, renormalize, 2.5, impl=impl)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    expected = choice.double().argsort(-1, descending=True)[:, :top_k]
    assert torch.equal(ids.long(), expected)
    taken = scores.double().gather(-1, expected)
    taken = 2.5 * (taken / taken.sum(-1, keepdim=True) if renormalize else taken)
    torch.testing.assert_close(weights.double(), taken, rtol=3e-7, atol=0)


@pytest.mark.parametrize("impl", ALL)
def test_ties_go_to_the_lower_id_and_nan_is_chosen_last(impl):
    choice = torch.tensor([[1.0, torch.nan, 2.0, 2.0, -torch.inf]])
    _, ids = kernels.topk_scores(torch.ones(1, 5), choice, 5, False, 1.0, impl=impl)
    assert ids[0, :3].tolist() == [2, 3, 0]
    assert sorted(ids[0].tolist()) == list(range(5))


def test_more_experts_than_there_are_is_refused():
    with pytest.raises(ValueError, match="between 1 and the 4 experts, not 5"):
        kernels.topk_scores(torch.ones(2, 4), torch.ones(2, 4), 5, True, 1.0)
