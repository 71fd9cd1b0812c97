"""Twins of cases that replay a golden folder, and what cannot be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.loader.inputs import draw, trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.replay import with_captured
from fastkernels.measure import roofline
from fastkernels.records import Case
from tests.golden_folders import hand_made

BASELINE = Overlay.over_baseline()


def ids(experts: int, hot: int, tokens: int) -> torch.Tensor:
    """int64 [2, N, 2]: expert `hot` for every token, and one of the others."""
    others = [e for e in range(experts) if e != hot]
    return torch.tensor([[[hot, others[t % len(others)]] for t in range(tokens)]] * 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """Of the tiny model's experts: prefill tokens all choose expert 3, decode tokens expert 1."""
    path = tmp_path_factory.mktemp("replay") / "golden"
    return str(hand_made(path, {"prefill": ids(4, 3, 300), "decode": ids(4, 1, 60)}, 4))


def twins(folder: str, task: str, size: str = "tiny") -> list[Case]:
    found = with_captured({task: registry.cases(task, size)}, folder)
    return [case for case in found[task] if case.routing and case.routing.skew == "captured"]


def test_each_timed_case_of_uniform_routing_has_a_twin_behind_it(folder: str) -> None:
    cases = registry.cases("L1/grouped_gemm", "tiny")
    found = with_captured({"L1/grouped_gemm": cases}, folder)["L1/grouped_gemm"]
    assert [case for case in found if case.routing.skew != "captured"] == cases
    theirs = [case for case in cases if case.provenance.architecture == "mixtral"]
    expected = [case for case in theirs if case.timed and case.routing.skew == "uniform"]
    assert expected
    for case in expected:
        twin = found[found.index(case) + 1]
        assert twin.id == case.id.removesuffix("f32") + "captured-f32"
        assert (twin.inputs, twin.init, twin.calls) == (case.inputs, case.init, case.calls)
    assert len(found) == len(cases) + len(expected)
    assert len({case.id for case in found}) == len(found)


def test_each_rank_of_a_group_replays_tokens_of_its_own(folder: str) -> None:
    cases = twins(folder, "L1/all_to_all")
    assert {case.variant for case in cases} == {"ep_dispatch", "ep_combine"}
    for case in cases:
        drawn = draw(trial_specs(case, build_module(BASELINE, case, "meta")), case, 1)
        own, theirs = (drawn[name] for name in ("arg.topk_idx", "peer.1.arg.topk_idx"))
        assert not torch.equal(own, theirs)
        assert all((one == 3).any(1).all() for one in (own, theirs)), "expert 3 has every token of a prefill"


def loads(case: Case, seed: int = 1) -> torch.Tensor:
    """How many tokens each expert gets in the case's module, from the tensors that a judge draws."""
    counted = []
    module = build_module(BASELINE, case, "cpu")
    for part in module.modules():
        if type(part).__name__ == "MoEAlign":
            part.register_forward_pre_hook(lambda _, args: counted.append(args[0]))
    bind(module, case, draw(trial_specs(case, module), case, seed)).invoke()
    return torch.bincount(counted[0].flatten().long(), minlength=4)


@pytest.mark.parametrize("task", ["L1/moe_permute", "L2/fused_experts", "L2/moe", "L3/moe_decoder_layer"])
def test_the_captured_load_reaches_the_experts(folder: str, task: str) -> None:
    if not any(case.timed for case in registry.cases(task)):
        pytest.skip(f"{task} is not admitted, so no case of it is timed or replayed")
    cases = [case for case in twins(folder, task) if case.variant != "sum"]
    assert {"prefill", "decode"} <= {case.provenance.phase for case in cases}
    for case in cases:
        load_E = loads(case)
        tokens = int(load_E.sum()) // 2
        assert int(load_E[1 if case.provenance.phase == "decode" else 3]) == tokens, case.id


def test_routing_gets_the_captured_logits(folder: str) -> None:
    (case, *_) = [c for c in twins(folder, "L1/moe_routing") if c.provenance.phase == "prefill"]
    module = build_module(BASELINE, case, "cpu")
    outputs = bind(module, case, draw(trial_specs(case, module), case, 1)).invoke()
    assert (outputs["out.1"][:, 0] == 3).all()


def test_the_roofline_counts_the_experts_that_are_reached(tmp_path: Path) -> None:
    """Two of four experts have tokens: half of the weights is read, and no less than the call reads."""
    two = torch.tensor([[[0, 1]] * 200])
    path = str(hand_made(tmp_path / "two", {"prefill": two, "decode": two}, 4))
    (captured, *_) = [c for c in twins(path, "L1/grouped_gemm") if "T128" in c.id]
    uniform = next(
        c for c in registry.cases("L1/grouped_gemm", "tiny") if c.id == captured.id.replace("-captured", "")
    )
    few, all_four = (roofline.work(case, BASELINE).read_bytes for case in (captured, uniform))
    k, n = captured.init["input_size"], captured.init["output_size"]
    assert all_four - few == 2 * k * n * 4


# ---------------------------------------------------------------- what cannot be replayed


def test_a_task_that_chooses_nothing(folder: str) -> None:
    with pytest.raises(UsageError, match=r"nothing in the cases asked for chooses experts.*L2/moe"):
        with_captured({"L1/rms_norm": registry.cases("L1/rms_norm", "tiny")}, folder)


def test_another_architecture(tmp_path: Path) -> None:
    path = hand_made(
        tmp_path / "other", {"prefill": ids(4, 0, 9), "decode": ids(4, 0, 9)}, 4, architecture="gla"
    )
    with pytest.raises(UsageError, match=r"captured from gla.*are of .*jamba, mixtral.*fk capture --model "):
        twins(str(path), "L2/moe")


def test_another_number_of_experts(folder: str) -> None:
    with pytest.raises(UsageError, match=r"choose 2 of 4 experts.*size full others.*--size"):
        twins(folder, "L2/moe", "full")
