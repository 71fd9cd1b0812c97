"""The worker's side of a trial, step by step, without a process round it."""

import os
from pathlib import Path

import pytest
import torch

from fastkernels.loader import views
from fastkernels.loader.materialize import SignatureMismatch
from fastkernels.measure.chain import ChainPlan
from fastkernels.runner.inside.kernel_side import KernelSide
from fastkernels.runner.inside.results import Result
from fastkernels.runner.transfer.shared_memory import Arena, Want
from tests.unit.runner.conftest import drawn, sent, small_case, stored_of

one_link = ChainPlan().links_of


def opened(side: KernelSide, arenas: list[Arena], task: str, layers=(), implementations=None):
    """The side on a small case, with its boxes. Returns (inputs, inbox, outbox, echo)."""
    case = small_case(task)
    inputs = drawn(case)
    inbox = Arena.like(stored_of(case), "cpu", one_link)
    inbox.write(sent(case, inputs))
    arenas.append(inbox)
    side.open(layers, case, implementations or {}, again=False)
    side.build()
    side.attach(inbox.ticket, [os.dup(inbox.descriptors[0])])
    first = side.first()
    results = {name: Result.model_validate(r) for name, r in first["outputs"].items()}
    wanted = [
        Want(n, r.description.shape, getattr(torch, r.description.dtype), r.span_bytes)
        for n, r in results.items()
    ]
    outbox = Arena.create(wanted, "cpu", writable=True)
    echo = Arena.like(stored_of(case), "cpu", one_link, writable=True)
    arenas += [outbox, echo]
    side.boxes(outbox.ticket, echo.ticket, [os.dup(box.descriptors[0]) for box in (outbox, echo)])
    return case, inputs, inbox, outbox, echo


def iterate(side: KernelSide, fresh: bool = False, parameters: bool = True, echo=()) -> dict:
    side.prepare("host", fresh, parameters)
    assert side.go()["ns"] > 0
    return side.inspect(list(echo))


def expected(inputs: dict[str, torch.Tensor], eps: float) -> torch.Tensor:
    x = inputs["arg.x"].double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * inputs["param.weight"].double()


def test_results_follow_the_inbox_and_leave_through_the_outbox(side: KernelSide, arenas) -> None:
    case, inputs, inbox, outbox, echo = opened(side, arenas, "L1/rms_norm")
    for seed in range(3):
        inputs = drawn(case, seed)
        inbox.write(inputs)
        outbox.poison()
        echo.poison()
        described = iterate(side, fresh=seed == 1, echo=inputs)
        torch.testing.assert_close(
            outbox.tensors["out.0"].double(), expected(inputs, case.init["eps"]), rtol=1e-5, atol=1e-5
        )
        assert [one["out.0"]["description"]["shape"] for one in described["outputs"]] == [[16, 64]]
        for name, value in inputs.items():
            assert torch.equal(echo.tensors[name], value)


def test_results_are_copied_out_again_from_where_they_lie(side: KernelSide, arenas) -> None:
    _, _, inbox, outbox, _ = opened(side, arenas, "L1/rms_norm")
    iterate(side)
    kept = outbox.copied()
    inbox.poison()
    outbox.poison()
    side.inspect([], echo_results=True)
    assert torch.equal(outbox.bytes, kept.bytes)
    assert outbox.tensors["out.0"].isfinite().all()


@pytest.mark.parametrize("fresh", [False, True])
def test_inputs_lie_as_in_the_model_where_the_judge_says_so(side: KernelSide, arenas, fresh: bool) -> None:
    case, _, inbox, outbox, echo = opened(side, arenas, "L1/kv_cache")
    strides = []
    for seed, strided in ((3, True), (4, False), (5, True), (6, True)):
        inputs = drawn(case, seed)
        inbox.write(sent(case, inputs, strided))
        outbox.poison()
        side.prepare("host", fresh, parameters=True, strided=strided)
        side.go()
        side.inspect(["storage.value"])
        strides.append(side._first_link.call.args[1].stride())
        stored = outbox.tensors["arg.value_cache"][0].flatten(0, 1)[inputs["arg.slot_mapping"][0]]
        assert torch.equal(stored, inputs["arg.value"][0])
        left, given = echo.tensors["storage.value"], inbox.tensors["storage.value"]
        assert torch.equal(left.view(torch.int32), given.view(torch.int32)), "neighbours as well"
    view = views.arguments(case)["arg.value"].view
    assert view is not None
    assert strides == [view.strides, (32, 16, 1), view.strides, view.strides]


def test_parameters_stay_where_they_are_told_to(side: KernelSide, arenas) -> None:
    case, inputs, inbox, outbox, _ = opened(side, arenas, "L1/rms_norm")
    other = drawn(case, seed=9)
    inbox.write(other)
    iterate(side, parameters=False)
    mixed = {**other, "param.weight": inputs["param.weight"]}
    torch.testing.assert_close(
        outbox.tensors["out.0"].double(), expected(mixed, case.init["eps"]), rtol=1e-5, atol=1e-5
    )


def test_some_calls_find_their_inputs_elsewhere(side: KernelSide, arenas) -> None:
    opened(side, arenas, "L1/rms_norm")
    places = []
    for fresh in (False, False, True, True):
        iterate(side, fresh=fresh)
        places.append(side._links[0]._staging.tensors["arg.x"].data_ptr())
    first, same, other, another = places
    assert first == same
    # The last may lie again where the call before the one before it did, whose memory is free by then.
    assert same != other != another


def test_mutated_arguments_are_results(side: KernelSide, arenas) -> None:
    _, inputs, _, outbox, _ = opened(side, arenas, "L1/kv_cache")
    outbox.poison()
    iterate(side)
    slots = inputs["arg.slot_mapping"][0]
    stored = outbox.tensors["arg.key_cache"][0].flatten(0, 1)
    assert torch.equal(stored[slots], inputs["arg.key"][0])
    untouched = torch.ones(len(stored), dtype=torch.bool)
    untouched[slots] = False
    assert torch.equal(stored[untouched], inputs["arg.key_cache"][0].flatten(0, 1)[untouched])


def test_the_call_before_the_last_can_be_looked_at_again(side: KernelSide, arenas) -> None:
    case, inputs, inbox, outbox, _ = opened(side, arenas, "L1/rms_norm")
    inbox.write(inputs)
    iterate(side)
    before = outbox.tensors["out.0"].clone()
    inbox.write(drawn(case, seed=5))
    iterate(side)
    assert not torch.equal(outbox.tensors["out.0"], before)
    for _ in range(3):  # and as often as anybody asks
        outbox.poison()
        side.again()
        assert torch.equal(outbox.tensors["out.0"], before)
        iterate(side)


def test_the_kernels_that_ran_are_named_and_can_be_forced(side: KernelSide, arenas) -> None:
    case = small_case("L1/rms_norm")
    for forced in ({}, {"rms_norm": "reference"}):
        side.open((), case, forced, again=False)
        side.build()
        inputs = sent(case, drawn(case))
        inbox = Arena.like(stored_of(case), "cpu", one_link)
        inbox.write(inputs)
        arenas.append(inbox)
        side.attach(inbox.ticket, [os.dup(inbox.descriptors[0])])
        seen = side.first()["kernels"]
        assert set(seen) == {"rms_norm"}
    assert seen == {"rms_norm": "reference"}


PREPARES = """
import torch
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size, 2)[:, 0], requires_grad=False)

    def prepare(self):
        self.packed = self.weight.double()

    def forward(self, x, residual=None):
        wide = x.double()
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.packed).to(x.dtype)
"""


def test_a_module_that_repacks_gets_every_change_of_its_parameters(
    side: KernelSide, arenas, tmp_path: Path
) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text(PREPARES)
    case, inputs, inbox, outbox, _ = opened(side, arenas, "L1/rms_norm", layers=[str(tmp_path)])
    for seed in (3, 4):
        inputs = drawn(case, seed)
        inbox.write(inputs)
        iterate(side)
        torch.testing.assert_close(
            outbox.tensors["out.0"].double(), expected(inputs, case.init["eps"]), rtol=1e-5, atol=1e-5
        )


def test_a_strided_parameter_is_filled_and_echoed_in_index_order(
    side: KernelSide, arenas, tmp_path: Path
) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text(
        PREPARES.replace("def prepare", "def not_now").replace("self.packed", "self.weight")
    )
    case, inputs, inbox, outbox, echo = opened(side, arenas, "L1/rms_norm", layers=[str(tmp_path)])
    inputs = drawn(case, 8)
    inbox.write(inputs)
    iterate(side, echo=["param.weight"])
    torch.testing.assert_close(
        outbox.tensors["out.0"].double(), expected(inputs, case.init["eps"]), rtol=1e-5, atol=1e-5
    )
    assert torch.equal(echo.tensors["param.weight"], inputs["param.weight"])


def test_a_class_without_the_parameters_does_not_load(side: KernelSide, arenas) -> None:
    layer = Path(__file__).parents[3] / "candidates" / "missing_parameter"
    with pytest.raises(SignatureMismatch, match="lacks weight"):
        opened(side, arenas, "L1/rms_norm", layers=[str(layer)])


def test_compile_is_checked_on_the_call(side: KernelSide, arenas, tmp_path: Path) -> None:
    (tmp_path / "L1").mkdir()
    broken = PREPARES.replace("def prepare", "def not_now").replace("self.packed", "self.weight")
    broken = broken.replace(
        "        wide = x.double()", "        torch._dynamo.graph_break()\n        wide = x.double()"
    )
    (tmp_path / "L1" / "rms_norm.py").write_text(broken)
    opened(side, arenas, "L1/rms_norm")
    assert side.compiled(again=False) == {"status": "ok", "detail": "", "traces": 1}
    opened(side, arenas, "L1/rms_norm", layers=[str(tmp_path)])
    found = side.compiled(again=False)
    assert found["status"] == "graph break"
    assert found["detail"]


@pytest.mark.parametrize("branch", ["x.sum().item() == 3", "x.nonzero().shape[0] == 3"])
def test_a_branch_on_a_tensors_value_is_a_graph_break(
    side: KernelSide, arenas, tmp_path: Path, branch: str
) -> None:
    (tmp_path / "L1").mkdir()
    source = PREPARES.replace("def prepare", "def not_now").replace("self.packed", "self.weight")
    branching = f"        if {branch}:\n            return x\n        wide = x.double()"
    source = source.replace("        wide = x.double()", branching)
    (tmp_path / "L1" / "rms_norm.py").write_text(source)
    opened(side, arenas, "L1/rms_norm", layers=[str(tmp_path)])
    found = side.compiled(again=False)
    assert found["status"] == "graph break"
    assert "data-dependent" in found["detail"].lower()
