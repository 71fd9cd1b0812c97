"""The referee on whole iterations: every link counts, and none may hide among the others."""

import random

import pytest
import torch

from fastkernels import registry
from fastkernels.judge.metadata import describe
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.chain import ChainPlan
from fastkernels.runner.party import Reading
from fastkernels.runner.referee import Referee
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
    x, weight = inputs["arg.x_TD"].double(), inputs["param.weight"].double()
    truth = x / (x.square().mean(-1, keepdim=True) + case.init["eps"]).sqrt() * weight[:, None]
    return referee, inputs, truth.float()


def reading(results: torch.Tensor, echo=None) -> Reading:
    described = tuple({"out.0": describe(result, {})} for result in results)
    return Reading(1.0, 1, 1, None, True, None, 1, described, {"out.0": results}, echo or {})


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
        spoiled = Reading(1.0, 1, 1, None, True, None, 1, described, ours.outputs, {})
        assert referee.described(spoiled, theirs).label == label


def test_an_input_that_one_link_changed_is_found(judged) -> None:
    referee, inputs, _ = judged
    echo = {name: value.clone() for name, value in inputs.items()}
    assert referee.unchanged(inputs, echo) is None
    assert referee.unchanged(inputs, {name: value[:1] for name, value in echo.items()}) is None
    echo["arg.x_TD"][6, 0, 0] += 1
    assert referee.unchanged(inputs, echo).label == "WRONG(mutated_input)"


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
    case = small_case("L1/moe_routing", "*T64-*")
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
        return Reading(1.0, 1, 1, None, True, None, 1, described, outputs, {})

    tied = {name: value.clone() for name, value in right.items()}
    tied["out.1"][0, 3] = torch.tensor([2, 3])
    assert referee.check(inputs, of(tied), of(tied), "normal", 0) is None, "the baseline's ties are right too"
    for ids, wrong in (([3, 1], False), ([1, 0], True), ([2, 2], True)):
        other = {name: value.clone() for name, value in right.items()}
        other["out.1"][0, 3] = torch.tensor(ids)
        verdict = referee.check(inputs, of(other), of(right), "normal", None)
        assert (verdict is not None) == wrong, ids
        assert verdict is None or verdict.label == "WRONG(value)"
