"""Names of what peers bring, and one process that computes for a whole group."""

from __future__ import annotations

import itertools

import pytest
import torch

from fastkernels import kernels, registry
from fastkernels.loader import ranks
from fastkernels.loader.inputs import draw, draw_links, trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay

BASELINE = Overlay.over_baseline()
CASE = next(case for case in registry.cases("L1/all_reduce", size="tiny") if case.ranks == 3)


def test_peers_bring_arguments_of_their_own_and_have_the_parameters_of_all():
    specs = {"arg.x": 1, "param.weight": 2, "step.rows": 3}
    assert ranks.with_peers(specs, 3) == {**specs, "peer.1.arg.x": 1, "peer.2.arg.x": 1}
    assert ranks.with_peers(specs, 1) == specs


def test_own_is_what_was_there_without_peers():
    specs = {"arg.x": 1, "param.weight": 2, "arg.peer.y": 3}
    assert ranks.own(ranks.with_peers(specs, 4)) == specs


def test_tensors_are_told_apart_by_rank_in_whatever_order_they_come():
    tensors = {"arg.x": 0, "param.w": 9, "peer.1.arg.x": 1, "peer.2.arg.x": 2, "peer.2.arg.y": 3}
    of_each = [{"arg.x": 0, "param.w": 9}, {"arg.x": 1}, {"arg.x": 2, "arg.y": 3}]
    for order in itertools.permutations(tensors):
        assert ranks.by_rank({name: tensors[name] for name in order}) == of_each
    assert ranks.by_rank({"arg.x": 0}) == [{"arg.x": 0}]


def test_each_rank_sees_its_peers_from_its_own_place_on():
    tensors = {"arg.x": torch.tensor([[0], [1], [2]]), "param.w": torch.tensor([[9]])}
    seen = [ranks.seen_from(rank, 3, tensors) for rank in range(3)]
    names = ("arg.x", "peer.1.arg.x", "peer.2.arg.x", "param.w")
    assert all(set(one) == {*names, "peer.rank"} for one in seen)
    assert [ranks.own_rank(one) for one in seen] == [0, 1, 2]
    assert [[int(one[name]) for name in names] for one in seen] == [[0, 1, 2, 9], [1, 2, 0, 9], [2, 0, 1, 9]]


def test_one_rank_sees_nobody_else():
    assert set(ranks.seen_from(2, 1, {"arg.x": torch.ones(4, 1)})) == {"arg.x"}


def specs():
    return trial_specs(CASE, build_module(BASELINE, CASE, "meta"))


def test_every_rank_of_a_trial_draws_values_of_its_own():
    own, *others = ranks.by_rank(draw(specs(), CASE, 1))
    assert len(others) == CASE.ranks - 1
    for one, other in itertools.combinations((own, *others), 2):
        assert one["arg.input_"].shape == other["arg.input_"].shape
        assert not torch.equal(one["arg.input_"], other["arg.input_"])


@pytest.mark.parametrize("rank", range(3))
def test_a_call_with_its_peers_gives_what_the_rank_itself_gets(rank):
    each = torch.stack([one["arg.input_"] for one in ranks.by_rank(draw(specs(), CASE, 1))])
    tensors = ranks.seen_from(rank, 3, {"arg.input_": each})
    with kernels.use("reference"):
        found = bind(build_module(BASELINE, CASE, "cpu"), CASE, tensors).invoke()
    assert set(found) == {"out.0"}
    torch.testing.assert_close(found["out.0"], each.sum(0))


@pytest.mark.parametrize("rank", range(3))
def test_a_call_with_its_peers_knows_which_rank_it_is(rank):
    case = next(case for case in registry.cases("L1/all_gather", size="tiny") if case.ranks == 3)
    each = torch.arange(3.0).view(3, 1, 1).expand(3, *case.inputs["input_"].shape)
    call = bind(build_module(BASELINE, case, "cpu"), case, ranks.seen_from(rank, 3, {"arg.input_": each}))
    width = each.shape[-1]
    assert call.invoke()["out.0"][0, ::width].tolist() == [0, 1, 2]


def test_ranks_choose_experts_of_their_own_and_share_what_is_replicated():
    case = next(c for c in registry.cases("L1/all_to_all:ep_dispatch", size="tiny") if c.ranks == 3)
    module = build_module(BASELINE, case, "meta")
    ids = [one["arg.topk_idx"] for one in ranks.by_rank(draw(trial_specs(case, module), case, 1))]
    assert all(not torch.equal(one, other) for one, other in itertools.combinations(ids, 2))
    own = ranks.own(trial_specs(case, module))
    drawn = draw_links(own, case, 1, lambda name: case.ranks)
    assert torch.equal(drawn["arg.topk_idx"], torch.stack(ids)), "as a group's ranks or as its peers"
    case = next(c for c in registry.cases("L2/all_reduce_norm", size="tiny") if c.ranks == 3)
    specs = trial_specs(case, build_module(BASELINE, case, "meta"))
    first, *others = ranks.by_rank(draw(specs, case, 1))
    assert all(torch.equal(first["arg.residual_in"], one["arg.residual_in"]) for one in others)
    assert not any(torch.equal(first["arg.allreduce_in"], one["arg.allreduce_in"]) for one in others)


@pytest.mark.parametrize("entry", [entry for entry in registry.tasks() if entry.private], ids=lambda e: e.id)
def test_no_other_ranks_results_depend_on_what_is_private(entry):
    case = next(case for case in registry.cases(entry, size="tiny") if case.ranks == 2)
    module = build_module(BASELINE, case, "cpu")
    tensors, others = (draw(trial_specs(case, module), case, seed) for seed in (1, 2))
    right = bind(module, case, tensors).invoke()
    for name in entry.private:
        changed = bind(module, case, {**tensors, f"peer.1.arg.{name}": others[f"peer.1.arg.{name}"]}).invoke()
        assert all(torch.equal(changed[key], right[key]) for key in right), name
        changed = bind(module, case, {**tensors, f"arg.{name}": others[f"arg.{name}"]}).invoke()
        assert not all(torch.equal(changed[key], right[key]) for key in right), name


def test_a_module_that_adds_nothing_up_returns_what_its_own_rank_brings(tree):
    candidate = tree(
        "candidate",
        {
            "L1/all_reduce.py": "from torch import nn\n"
            "class AllReduce(nn.Module):\n"
            "    def forward(self, input_):\n"
            "        return input_ + 0\n"
        },
    )
    tensors = draw(specs(), CASE, 1)
    module = build_module(Overlay.over_baseline([candidate]), CASE, "cpu")
    assert torch.equal(bind(module, CASE, tensors).invoke()["out.0"], tensors["arg.input_"])
