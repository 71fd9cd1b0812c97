"""A chain of links in a worker, on the CPU: "captured" calls are made again at every launch."""

import os
from pathlib import Path

import pytest
import torch

from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.contracts import Graph
from fastkernels.runner.kernel_side import KernelSide
from fastkernels.runner.shared import Arena, Want
from tests.unit.runner.conftest import drawn, small_case, specs_of

LINKS = 3
PLAN = ChainPlan(LINKS)


class Replaying:
    """A device whose chains make their calls again and write over the first results."""

    def __init__(self) -> None:
        self.chains = 0

    def capture(self, calls):
        self.chains += 1

        class Chain:
            results = [call().clone() for call in calls]

            def ready(self, link) -> None:
                """Everything is."""

            def launch(self, link) -> None:
                for index, (result, call) in enumerate(zip(self.results, calls)):
                    if link in (None, index):
                        result.copy_(call())

            def close(self) -> None:
                """Nothing to give back."""

        return Chain()

    def spin(self, cycles: int) -> None:
        self.cycles = cycles

    def elapsed_ns(self) -> int:
        return 1000

    def started(self) -> bool:
        return False

    def nothing(self) -> None: ...

    flush = start = end = wait = nothing


@pytest.fixture
def chained(side: KernelSide, arenas: list[Arena]):
    """opened(layers) -> (case, inbox, outbox, echo) of a side that can capture."""

    def opened(layers=(), plan=PLAN):
        case = small_case("L1/rms_norm")
        specs = specs_of(case)
        inbox = Arena.like(specs, "cpu", plan)
        inbox.write(drawn(case, plan=plan))
        side._contracts["graph"] = Graph(Replaying(), poison=lambda result: result.fill_(torch.nan))
        side.open(layers, case, {}, again=False)
        side.build()
        side.attach(inbox.ticket, [os.dup(inbox.descriptors[0])])
        side.first()
        out = [Want("out.0", case.inputs["x_TD"].shape, torch.float32, links=LINKS)]
        outbox = Arena.create(out, "cpu", writable=True)
        echo = Arena.like(specs, "cpu", plan, writable=True)
        arenas.extend([inbox, outbox, echo])
        side.boxes(outbox.ticket, echo.ticket, [os.dup(box.descriptors[0]) for box in (outbox, echo)])
        return case, inbox, outbox, echo

    return opened


def iterate(side: KernelSide, parameters: bool = True, echo=()) -> dict:
    side.prepare("graph", fresh=False, parameters=parameters, spin_cycles=7)
    assert side.go() == {"ns": 1000, "hidden": True}
    return side.inspect(list(echo))


def expected(inputs: dict[str, torch.Tensor], eps: float) -> torch.Tensor:
    x, weight = inputs["arg.x_TD"].double(), inputs["param.weight"].double()
    return (x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight[:, None]).float()


def test_every_link_works_on_its_own_inputs_and_parameters(side: KernelSide, chained) -> None:
    case, inbox, outbox, echo = chained()
    answer = side.capture(PLAN)
    assert answer["captured"]
    assert [described["out.0"]["description"]["shape"] for described in answer["outputs"]] == [[16, 64]] * 3
    for seed in (5, 6):
        inputs = drawn(case, seed, PLAN)
        inbox.write(inputs)
        outbox.poison()
        assert iterate(side, echo=inputs)["outputs"] == [], "they were described when they were captured"
        torch.testing.assert_close(outbox.tensors["out.0"], expected(inputs, case.init["eps"]))
        for name, value in inputs.items():
            assert torch.equal(echo.tensors[name], value)


class Recording:
    """Makes recorded work again, and counts."""

    def __init__(self, monkeypatch, device) -> None:
        self.made, self.enqueued, self.closed = 0, 0, 0
        monkeypatch.setattr(device, "recorded", self)

    def __call__(self, work):
        self.made += 1
        outer = self

        class Recorded:
            def __call__(self) -> None:
                outer.enqueued += 1
                work()

            def close(self) -> None:
                outer.closed += 1

        return Recorded()


def test_the_copies_of_a_chain_are_recorded_once(side: KernelSide, chained, monkeypatch) -> None:
    recording = Recording(monkeypatch, side._device)
    case, inbox, outbox, echo = chained()
    side.capture(PLAN)
    for seed in (5, 6, 7):
        inputs = drawn(case, seed, PLAN)
        inbox.write(inputs)
        iterate(side, echo=inputs)
        torch.testing.assert_close(outbox.tensors["out.0"], expected(inputs, case.init["eps"]))
        assert torch.equal(echo.tensors["arg.x_TD"], inputs["arg.x_TD"])
    assert (recording.made, recording.enqueued) == (3, 9), "inputs in, results out, inputs out"
    iterate(side, echo=["arg.x_TD"])
    assert recording.made == 4, "of other inputs that are looked at"
    side.capture(PLAN)
    assert recording.closed == 4


def test_parameters_in_another_form_are_not_recorded(
    side: KernelSide, chained, monkeypatch, tmp_path: Path
) -> None:
    """They pass through torch's operators, which a recording of raw copies would not hold."""
    recording = Recording(monkeypatch, side._device)
    (tmp_path / "L1").mkdir()
    source = UNCAPTURABLE.replace("CONDITION", "False").replace(
        "torch.empty(hidden_size)", "torch.empty(2 * hidden_size)[::2]"
    )
    (tmp_path / "L1" / "rms_norm.py").write_text(source)
    case, inbox, outbox, echo = chained([str(tmp_path)])
    assert side.capture(PLAN)["captured"]
    for seed in (5, 6):
        inputs = drawn(case, seed, PLAN)
        inbox.write(inputs)
        iterate(side, echo=inputs)
        torch.testing.assert_close(outbox.tensors["out.0"], expected(inputs, case.init["eps"]))
        assert torch.equal(echo.tensors["param.weight"], inputs["param.weight"])
    assert recording.made == 0


def test_links_that_share_their_parameters_follow_them_together(side: KernelSide, chained) -> None:
    plan = ChainPlan(LINKS, shares_parameters=True)
    case, inbox, outbox, echo = chained(plan=plan)
    assert side.capture(plan)["captured"]
    inputs = drawn(case, 5, plan)
    assert [len(inputs[name]) for name in ("arg.x_TD", "param.weight")] == [LINKS, 1]
    inbox.write(inputs)
    iterate(side, echo=inputs)
    torch.testing.assert_close(outbox.tensors["out.0"], expected(inputs, case.init["eps"]))
    for name, value in inputs.items():
        assert torch.equal(echo.tensors[name], value)


def test_a_link_alone_takes_its_own_inputs_and_leaves_the_others(side: KernelSide, chained) -> None:
    case, inbox, outbox, echo = chained()
    side.capture(PLAN)
    old = drawn(case, 5, PLAN)
    inbox.write(old)
    iterate(side)
    inputs = {**drawn(case, 6, PLAN), "param.weight": old["param.weight"]}
    inbox.write(inputs)
    outbox.poison()
    echo.poison()
    side.prepare("graph", fresh=False, parameters=False, spin_cycles=7, link=1)
    side.go()
    side.inspect(["arg.x_TD"])
    torch.testing.assert_close(outbox.tensors["out.0"][1], expected(inputs, case.init["eps"])[1])
    assert torch.equal(echo.tensors["arg.x_TD"][1], inputs["arg.x_TD"][1])
    for other in (0, 2):
        assert outbox.tensors["out.0"][other].isnan().all()
        assert echo.tensors["arg.x_TD"][other].isnan().all()


def test_links_and_chains_lie_at_other_places(side: KernelSide, chained) -> None:
    chained()
    places = []
    for _ in range(2):
        side.capture(PLAN)
        places += [link._staging.tensors["arg.x_TD"].data_ptr() for link in side._links]
        kept = [link._staging.tensors for link in side._links]  # or the allocator gives the same memory again
    assert len(set(places)) == 2 * LINKS
    assert kept


def test_a_call_outside_the_chain_is_of_the_first_link_only(side: KernelSide, chained) -> None:
    case, inbox, outbox, _ = chained()
    side.capture(PLAN)
    inputs = drawn(case, 8, PLAN)
    inbox.write(inputs)
    outbox.poison()
    side.prepare("host", fresh=True, parameters=True, spin_cycles=0)
    side.go()
    (described,) = side.inspect([])["outputs"]
    assert described["out.0"]["description"]["shape"] == [16, 64]
    torch.testing.assert_close(outbox.tensors["out.0"][0], expected(inputs, case.init["eps"])[0])
    assert outbox.tensors["out.0"][1:].isnan().all()


UNCAPTURABLE = """
import torch
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.calls = eps, 0
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x_TD, residual_TD=None):
        self.calls += 1
        if CONDITION:
            raise RuntimeError("operation not permitted when stream is capturing")
        x = x_TD.double()
        return (x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight).to(x_TD.dtype)
"""


def test_what_cannot_be_captured_leaves_one_link_that_works(
    side: KernelSide, chained, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "L1").mkdir()
    source = UNCAPTURABLE.replace("CONDITION", "__import__('os').environ.get('FK_TEST_CAPTURES')")
    (tmp_path / "L1" / "rms_norm.py").write_text(source)
    case, inbox, outbox, _ = chained([str(tmp_path)])
    monkeypatch.setenv("FK_TEST_CAPTURES", "1")
    answer = side.capture(PLAN)
    monkeypatch.delenv("FK_TEST_CAPTURES")
    assert not answer["captured"]
    assert "not permitted" in answer["detail"]
    assert answer["outputs"] == []
    inputs = drawn(case, 9, PLAN)
    inbox.write(inputs)
    side.prepare("host", fresh=False, parameters=True, spin_cycles=0)
    side.go()
    torch.testing.assert_close(outbox.tensors["out.0"][0], expected(inputs, case.init["eps"])[0])
