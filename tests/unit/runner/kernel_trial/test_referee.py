"""The referee on whole iterations: no link may hide among the others, and no rank."""

import random
from dataclasses import replace

import pytest
import torch

from fastkernels import registry
from fastkernels.judge.metadata import describe
from fastkernels.judge.verdict import Verdict
from fastkernels.loader import ranks, views
from fastkernels.loader.inputs import draw_links
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.chain import ChainPlan
from fastkernels.runner.kernel_trial.referee import Referee
from fastkernels.runner.worker.reading import Reading
from tests.unit.runner.conftest import drawn, small_case, specs_of

LINKS = 8


@pytest.fixture
def judged():
    """(referee, inputs, the right results)"""
    case = small_case("L1/rms_norm")
    referee = Referee(
        registry.task(case.task), case, specs_of(case), Overlay.over_baseline(), "cpu", random.Random(1)
    )
    inputs = drawn(case, plan=ChainPlan(LINKS))
    x, weight = inputs["arg.x"].double(), inputs["param.weight"].double()
    truth = x / (x.square().mean(-1, keepdim=True) + case.init["eps"]).sqrt() * weight[:, None]
    return referee, inputs, truth.float()


def reading(results: torch.Tensor, echo=None) -> Reading:
    described = tuple({"out.0": describe(result, {})} for result in results)
    return Reading(1.0, 1, 1, True, None, 1, described, {"out.0": results}, echo or {})


def check(judged, results: torch.Tensor, oracle_link: int | None = None):
    referee, inputs, truth = judged
    return referee.check(inputs, reading(results), reading(truth), "normal", oracle_link)


def test_right_results_pass_and_every_link_is_counted(judged) -> None:
    assert check(judged, judged[2], oracle_link=3) is None
    assert judged[0].checked == 1 + LINKS
    assert check(judged, judged[2]) is None
    assert judged[0].checked == 1 + 2 * LINKS


@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("bad", range(LINKS))
def test_one_wrong_row_of_one_link_is_found_without_the_oracle(judged, bad: int, known: bool) -> None:
    if known:
        assert check(judged, judged[2], oracle_link=0) is None
    results = judged[2].clone()
    results[bad, 5] *= 1.01
    assert check(judged, results).label == "WRONG(value)"


def test_links_of_another_shape_dtype_or_layout_are_found(judged) -> None:
    referee, _, truth = judged
    ours, theirs = reading(truth), reading(truth)
    assert referee.described(ours, theirs) is None
    wide = describe(truth[0].double(), {})
    other = describe(truth[0].T.contiguous().T, {})
    for changed, label in ((wide, "WRONG(dtype)"), (other, "WRONG(stride)")):
        described = (*ours.described[:4], {"out.0": changed}, *ours.described[5:])
        spoiled = Reading(1.0, 1, 1, True, None, 1, described, ours.outputs, {})
        assert referee.described(spoiled, theirs).label == label


def test_an_input_that_one_link_changed_is_found(judged) -> None:
    referee, inputs, _ = judged
    echo = {name: value.clone() for name, value in inputs.items()}
    assert referee.unchanged(inputs, echo) is None
    assert referee.unchanged(inputs, {name: value[:1] for name, value in echo.items()}) is None
    echo["arg.x"][6, 0, 0] += 1
    assert referee.unchanged(inputs, echo).label == "WRONG(mutated_input)"


@pytest.mark.parametrize("strided", [False, True])
def test_who_writes_beside_an_input_is_told_apart_from_who_changes_it(strided: bool) -> None:
    """In the shared memory of queries and keys there is room that is neither's."""
    case = small_case("L1/rope")
    specs = specs_of(case)
    referee = Referee(registry.task(case.task), case, specs, Overlay.over_baseline(), "cpu", random.Random(1))
    inputs = drawn(case)
    inputs |= views.laid(specs, inputs, views.of_all(strided))
    given = inputs["storage.query"]
    assert referee.unchanged(inputs, {"storage.query": given.clone()}) is None
    for place, what in (
        (given.isnan(), "wrote beside its input arg.query and arg.key"),
        (~given.isnan(), "changed its input arg.query and arg.key"),
    ):
        echo = given.clone()
        echo.view(-1)[place.flatten().nonzero()[-1]] = 0.5
        found = referee.unchanged(inputs, {"storage.query": echo})
        assert found is not None
        assert found.label == "WRONG(mutated_input)"
        assert found.failure is not None
        assert what in found.failure.message


def test_strides_of_results_may_follow_those_of_the_inputs(judged) -> None:
    referee, _, truth = judged
    packed, other = (describe(truth[0], {}), describe(truth[0].T.contiguous().T, {}))
    described = tuple({"out.0": other if link % 2 else packed} for link in range(LINKS))
    alternating = tuple(bool(link % 2) for link in range(LINKS))
    ours = replace(reading(truth), described=described, strided=alternating)
    assert referee.described(ours, reading(truth)) is None
    one_more = replace(ours, described=(described[1], *described[1:]))
    assert referee.described(one_more, reading(truth)).label == "WRONG(stride)"


def test_draws_of_all_links_are_judged() -> None:
    case = small_case("L1/sampling")
    referee = Referee(
        registry.task(case.task), case, specs_of(case), Overlay.over_baseline(), "cpu", random.Random(1)
    )
    inputs = drawn(case, plan=ChainPlan(LINKS))
    module = build_module(Overlay.over_baseline(), case, "cpu")
    right = torch.stack(
        [
            bind(module, case, {name: value[link] for name, value in inputs.items()}).invoke()["out.0"]
            for link in range(LINKS)
        ]
    )
    assert referee.check(inputs, reading(right), reading(right), "normal", None) is None
    assert referee.wants_draws, "a few draws tell nothing of a distribution"
    spoiled = right.clone()
    spoiled[6, 0] = 1 << 20  # no id of the vocabulary
    assert referee.check(inputs, reading(spoiled), reading(right), "normal", None).status == "WRONG"


def test_ties_of_a_choice_may_fall_either_way_and_nothing_else_may() -> None:
    case = small_case("L1/moe_routing", "*T128-*")
    referee = Referee(
        registry.task(case.task), case, specs_of(case), Overlay.over_baseline(), "cpu", random.Random(1)
    )
    inputs = drawn(case)
    inputs["arg.router_logits"][0, 3] = torch.tensor([1.0, 2.0, 2.0, 2.0])
    module = build_module(Overlay.over_baseline(), case, "cpu")
    results = bind(module, case, {name: value[0] for name, value in inputs.items()}).invoke()
    right = {name: value[None] for name, value in results.items()}
    assert right["out.1"][0, 3].tolist() == [1, 2]

    def of(outputs: dict[str, torch.Tensor]) -> Reading:
        described = ({name: describe(value[0], {}) for name, value in outputs.items()},)
        return Reading(1.0, 1, 1, True, None, 1, described, outputs, {})

    tied = {name: value.clone() for name, value in right.items()}
    tied["out.1"][0, 3] = torch.tensor([2, 3])
    assert referee.check(inputs, of(tied), of(tied), "normal", 0) is None, "the baseline's ties are right too"
    for ids, wrong in (([3, 1], False), ([1, 0], True), ([2, 2], True)):
        other = {name: value.clone() for name, value in right.items()}
        other["out.1"][0, 3] = torch.tensor(ids)
        verdict = referee.check(inputs, of(other), of(right), "normal", None)
        assert (verdict is not None) == wrong, ids
        assert verdict is None or verdict.label == "WRONG(value)"


RANKS = 3


@pytest.fixture
def group():
    """(referee, inputs, the right results) of a sum over three ranks."""
    case = small_case("L1/all_reduce", "*3ranks*")
    specs = ranks.own(specs_of(case))
    referee = Referee(registry.task(case.task), case, specs, Overlay.over_baseline(), "cpu", random.Random(1))
    plan = ChainPlan(RANKS, shares_parameters=True)
    inputs = draw_links(specs, case, 1, plan.links_of)
    total = inputs["arg.input_"][0] + inputs["arg.input_"][1] + inputs["arg.input_"][2]
    return referee, inputs, total.expand(RANKS, -1, -1).clone()


def judge(group, results: torch.Tensor, oracle_rank: int | None = 0):
    referee, inputs, truth = group
    echo = {name: value.clone() for name, value in inputs.items()}
    return referee.judge(inputs, reading(results, echo), reading(truth), "normal", oracle_rank)


def test_a_group_whose_ranks_are_all_right_passes(group) -> None:
    assert [judge(group, group[2], rank) for rank in (*range(RANKS), None)] == [None] * (RANKS + 1)


@pytest.mark.parametrize("oracle_rank", [0, 2, None])
@pytest.mark.parametrize("bad", range(RANKS))
def test_one_wrong_rank_is_named_beside_one_that_is_right(group, bad: int, oracle_rank) -> None:
    results = group[2].clone()
    results[bad] *= 1.01
    verdict = judge(group, results, oracle_rank)
    assert verdict.label == "WRONG(rank_divergent)"
    assert verdict.failure.message.startswith(f"rank {bad}: ")
    assert verdict.failure.message.endswith(f"rank {int(bad == 0)} is right")


def test_ranks_that_are_all_wrong_do_not_diverge(group) -> None:
    assert judge(group, 1.01 * group[2]).label == "WRONG(value)"
    each_its_own = RANKS * group[1]["arg.input_"]
    assert judge(group, each_its_own).label == "WRONG(value)"


def test_right_ranks_with_other_bits_diverge(group) -> None:
    results = group[2].clone()
    results[2, 4, 7] = results[2, 4, 7].nextafter(torch.tensor(float("inf")))
    verdict = judge(group, results)
    assert verdict.label == "WRONG(rank_divergent)"
    assert verdict.failure.message == "out.0: rank 2 has other bits than rank 0"


def test_ranks_need_the_same_bits_only_where_the_task_says_so(group) -> None:
    referee, _, truth = group
    results = truth.clone()
    results[2, 4, 7] = results[2, 4, 7].nextafter(torch.tensor(float("inf")))
    referee._entry = referee._entry.model_copy(update={"replicates": False})
    assert judge(group, results) is None


def test_a_near_thing_that_passes_when_it_is_looked_at_again_is_wrong_as_it_was_found(
    group, monkeypatch
) -> None:
    referee = group[0]
    once = iter([Verdict.wrong("value", "a near thing")])
    monkeypatch.setattr(referee, "_against_oracle", lambda *_: next(once, None))
    verdict = judge(group, group[2])
    assert (verdict.label, verdict.failure.message) == ("WRONG(value)", "a near thing")


def test_a_bad_baseline_of_a_group_is_no_fault_of_a_rank(group) -> None:
    referee, inputs, truth = group
    echo = {name: value.clone() for name, value in inputs.items()}
    baseline = truth.clone()
    baseline[0] = torch.nan
    verdict = referee.judge(inputs, reading(truth, echo), reading(baseline), "normal", 0)
    assert verdict.status == "INVALID_BASELINE"


def test_a_rank_whose_baseline_is_bad_is_not_the_one_that_is_named(group) -> None:
    referee, inputs, truth = group
    echo = {name: value.clone() for name, value in inputs.items()}
    baseline, results = truth.clone(), truth.clone()
    baseline[0] = torch.nan
    results[1] *= 1.01
    verdict = referee.judge(inputs, reading(results, echo), reading(baseline), "normal", 1)
    assert verdict.label == "WRONG(rank_divergent)"
    assert verdict.failure.message.startswith("rank 1: ")
