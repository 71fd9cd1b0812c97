"""Mixture-of-experts tasks against a loop over tokens that follows the equations of their docstrings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fastkernels.baseline.L2.fused_experts import FusedExperts
from fastkernels.baseline.L2.moe import SparseMoE
from torch import Tensor

from fastkernels import kernels
from fastkernels.nn.fusion import apart
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.routing import routers

E, K, D, WIDTH = 5, 2, 32, 48


def block(renormalize: bool = True) -> SparseMoE:
    made = SparseMoE(E, K, D, WIDTH, renormalize)
    random_weights(made, seed=1)
    return made


def rows(tokens: int, seed: int = 0) -> Tensor:
    return torch.randn(tokens, D, generator=torch.Generator().manual_seed(seed))


def expert(experts: FusedExperts, e: int, x_D: Tensor) -> Tensor:
    w13, w2 = experts.w13.weight[e].double(), experts.w2.weight[e].double()
    return w2 @ (F.silu(w13[:WIDTH] @ x_D.double()) * (w13[WIDTH:] @ x_D.double()))


def one_by_one(moe: SparseMoE, x_TD: Tensor, renormalize: bool) -> Tensor:
    y_TD = torch.zeros(x_TD.shape, dtype=torch.float64)
    for t, x_D in enumerate(x_TD):
        p_E = (moe.gate.weight.double() @ x_D.double()).softmax(-1)
        best = p_E.topk(K)
        share = best.values.sum() if renormalize else 1
        for p, e in zip(best.values, best.indices.tolist(), strict=True):
            y_TD[t] += p / share * expert(moe.experts, e, x_D)
    return y_TD


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 41])
def test_a_block_is_its_loop_over_tokens(tokens: int, renormalize: bool, implementation: str):
    moe, x_TD = block(renormalize), rows(tokens)
    with kernels.use(implementation):
        actual = moe(x_TD)
    torch.testing.assert_close(actual.double(), one_by_one(moe, x_TD, renormalize), rtol=0, atol=1e-5)


def test_renormalising_matters_for_this_test():
    x_TD = rows(41)
    assert (block(True)(x_TD) - block(False)(x_TD)).abs().max() > 0.01


def test_shuffled_tokens_give_shuffled_results():
    moe, x_TD = block(), rows(41)
    shuffle = torch.randperm(41, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(moe(x_TD[shuffle]), moe(x_TD)[shuffle], rtol=0, atol=1e-5)


def test_experts_take_any_choice_and_weigh_outputs():
    """All tokens at one pair of experts, one weight zero: the output is that of the other, scaled."""
    experts, x_TD = block().experts, rows(9)
    ids = torch.tensor([[3, 1]], dtype=torch.int32).repeat(9, 1)
    weights = torch.tensor([[0.0, 2.0]]).repeat(9, 1)
    expected = torch.stack([2 * expert(experts, 1, x_D) for x_D in x_TD])
    torch.testing.assert_close(experts(x_TD, weights, ids).double(), expected, rtol=0, atol=1e-5)


def test_no_tokens():
    assert block()(rows(0)).shape == (0, D)


def test_a_router_is_found_with_what_it_declares():
    ((name, router),) = routers(torch.nn.Sequential(block()))
    assert (name, router.num_experts, router.top_k) == ("0", E, K)
    assert router.gate_weight.shape == (E, D)


@pytest.mark.parametrize("part", ["align", "w13", "act_fn", "w2", "sum"])
def test_the_experts_are_one_kernel_while_all_parts_are_as_they_were_made(part: str, monkeypatch):
    moe, x_TD, called, ran = block(), rows(7), [], []
    fused = kernels.experts
    monkeypatch.setattr(kernels, "experts", lambda *args: called.append(1) or fused(*args))
    wanted = moe(x_TD)
    assert called == [1]
    with apart(moe):
        torch.testing.assert_close(moe(x_TD), wanted, rtol=0, atol=1e-6)
    getattr(moe.experts, part).register_forward_hook(lambda *_: ran.append(1))
    torch.testing.assert_close(moe(x_TD), wanted, rtol=0, atol=1e-6)
    assert ran
    assert called == [1]
