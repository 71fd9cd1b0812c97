"""A chain of links in a worker, on the CPU: "captured" calls are made again at every launch."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fastkernels.loader import views
from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.contracts import Eager, Graph
from fastkernels.runner.inside.kernel_side import KernelSide
from fastkernels.runner.transfer.gpu_arguments import LENT, Shown, Spot
from fastkernels.runner.transfer.shared_memory import Arena, Want
from tests.unit.runner.conftest import drawn, sent, small_case, specs_of, stored_of

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

            def ready(self, *orders) -> None:
                """Everything is."""

            def launch(self, order) -> None:
                for link in order:
                    self.results[link].copy_(calls[link]())

            def close(self) -> None:
                """Nothing to give back."""

        return Chain()

    def elapsed_ns(self) -> int:
        return 1000

    def nothing(self) -> None: ...

    stir = start = end = wait = nothing


class Held:
    """The judge's hold of the device, which brings arguments to where the links work on them."""

    def __init__(self, lent: Arena) -> None:
        self.lent, self.given = lent, {}

    def begin(self) -> None:
        self.lent.write(self.given)

    def end(self) -> None: ...


class Shows:
    """A gate at which nobody waits."""

    def __init__(self) -> None:
        self.said = None

    def wait(self) -> None: ...

    def show(self, where: bytes) -> None:
        self.said = Shown.model_validate_json(where)

    def close(self) -> None: ...


class Chained:
    """A side that can capture, with the judge's part beside it."""

    def __init__(self, side: KernelSide, arenas: list[Arena], layers, plan: ChainPlan) -> None:
        self.side, self.arenas, self.plan = side, arenas, plan
        self.case = small_case("L1/rms_norm")
        specs = specs_of(self.case)
        self.arguments = {name: spec for name, spec in specs.items() if name.startswith("arg.")}

        def boxed(name: str) -> int:
            return 1 if name in self.arguments else plan.links_of(name)

        self.inbox, self.echo = (Arena.like(specs, "cpu", boxed, writable=True) for _ in range(2))
        drawn_first = drawn(self.case, plan=plan)
        self.inbox.write({name: value[: boxed(name)] for name, value in drawn_first.items()})
        side._contracts["graph"] = graph = Graph(Replaying())
        side._contracts["eager"] = eager = Eager(Replaying())
        side.open(layers, self.case, {}, again=False)
        side.build()
        side.attach(self.inbox.ticket, [os.dup(self.inbox.descriptors[0])])
        side.first()
        outbox = Arena.create([Want("out.0", (16, 64), torch.float32)], "cpu", writable=True)
        arenas.extend([self.inbox, outbox, self.echo])
        side.boxes(outbox.ticket, self.echo.ticket, [os.dup(b.descriptors[0]) for b in (outbox, self.echo)])
        side._gate = self.gate = Shows()  # type: ignore[assignment]
        self._held = [graph, eager]

    def lend(self, arguments: dict[str, torch.Tensor], links: int) -> dict:
        lent = Arena.like(self.arguments, "cpu", lambda name: links, writable=True)
        self.arenas.append(lent)
        lent.write({name: value for name, value in arguments.items() if name in self.arguments})
        self.hold = Held(lent)
        for contract in self._held:
            contract.hold = self.hold
        return {"lent": [lent.ticket], "descriptors": [os.dup(lent.descriptors[0])]}

    def capture(self) -> dict:
        inputs = drawn(self.case, plan=self.plan)
        return self.side.capture(self.plan, **self.lend(inputs, self.plan.links))

    def give(self, inputs: dict[str, torch.Tensor]) -> None:
        """Parameters to the inbox, and arguments when the device is let go."""
        self.inbox.write({name: value for name, value in inputs.items() if name not in self.arguments})
        self.hold.given = {name: value for name, value in inputs.items() if name in self.arguments}

    def go(self, parameters: bool = True, echo=(), order: Sequence[int] = range(LINKS)) -> dict:
        self.side.prepare("graph", fresh=False, parameters=parameters, order=order)
        assert self.side.go() == {"ns": 1000}
        return self.side.inspect(list(echo))


def results(shown: Shown) -> torch.Tensor:
    """[links, 16, 64]: what lies at the places, in this process."""
    found = []
    for link in shown.links:
        spot = link["out.0"]
        assert shown.blocks[spot.block] == ""
        memory = (ctypes.c_float * (spot.bytes // 4)).from_address(spot.offset)
        found.append(torch.frombuffer(memory, dtype=torch.float32).clone().view(16, 64))
    return torch.stack(found)


@pytest.fixture
def chained(side: KernelSide, arenas: list[Arena]):
    return lambda layers=(), plan=PLAN: Chained(side, arenas, layers, plan)


def expected(inputs: dict[str, torch.Tensor], eps: float) -> torch.Tensor:
    x, weight = inputs["arg.x"].double(), inputs["param.weight"].double()
    return (x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight[:, None]).float()


def test_every_link_works_on_its_own_arguments_and_parameters(chained) -> None:
    """Where the judge has brought them, and results stay where they were shown."""
    judge = chained()
    answer = judge.capture()
    assert answer["captured"]
    assert [described["out.0"]["description"]["shape"] for described in answer["outputs"]] == [[16, 64]] * 3
    shown = Shown.model_validate(answer["shown"])
    for seed in (5, 6):
        inputs = drawn(judge.case, seed, PLAN)
        judge.give(inputs)
        inspected = judge.go(echo=["param.weight"])
        assert inspected["outputs"] == [], "they were described when they were captured"
        torch.testing.assert_close(results(shown), expected(inputs, judge.case.init["eps"]))
        assert torch.equal(judge.hold.lent.tensors["arg.x"], inputs["arg.x"])
        assert torch.equal(judge.echo.tensors["param.weight"], inputs["param.weight"])


def test_every_second_link_has_its_inputs_as_in_the_model(side: KernelSide, arenas) -> None:
    case = small_case("L1/rms_norm", "*qwen3-T23-D4x32*")
    ((name, spec),) = views.arguments(case).items()
    assert spec.view is not None
    stored = stored_of(case)
    inbox = Arena.like(stored, "cpu", PLAN.links_of)
    lent = Arena.like(views.stored(views.arguments(case)), "cpu", PLAN.links_of, writable=True)
    arenas += [inbox, lent]
    inputs = drawn(case, plan=PLAN)
    inbox.write(sent(case, inputs))
    lent.write({place: sent(case, inputs)[place] for place in lent.tensors})
    side._contracts["graph"] = Graph(Replaying())  # type: ignore[assignment]
    side.open([], case, {}, again=False)
    side.build()
    side.attach(inbox.ticket, [os.dup(inbox.descriptors[0])])
    side._echo = None  # type: ignore[assignment]
    answer = side.capture(PLAN, [lent.ticket], [os.dup(lent.descriptors[0])])
    assert answer["captured"], answer["detail"]
    seen = [link.call.args[0] for link in side._links]
    packed = torch.empty(spec.shape).stride()
    assert [x.stride() for x in seen] == [packed, spec.view.strides, packed]
    assert spec.view.strides != packed
    assert all(torch.equal(x, right) for x, right in zip(seen, inputs[name], strict=True))


def test_links_that_share_their_parameters_follow_them_together(chained) -> None:
    plan = ChainPlan(LINKS, shares_parameters=True)
    judge = chained(plan=plan)
    shown = Shown.model_validate(judge.capture()["shown"])
    inputs = drawn(judge.case, 5, plan)
    assert [len(inputs[name]) for name in ("arg.x", "param.weight")] == [LINKS, 1]
    judge.give(inputs)
    judge.go(echo=["param.weight"])
    torch.testing.assert_close(results(shown), expected(inputs, judge.case.init["eps"]))
    assert torch.equal(judge.echo.tensors["param.weight"], inputs["param.weight"])


def test_a_link_alone_makes_its_own_result_and_its_neighbour_an_older_one(chained) -> None:
    judge = chained()
    shown = Shown.model_validate(judge.capture()["shown"])
    old = drawn(judge.case, 5, PLAN)
    judge.give(old)
    judge.go()
    before = results(shown)
    new = {**drawn(judge.case, 6, PLAN), "param.weight": old["param.weight"]}
    judge.give(new)
    judge.go(parameters=False, order=[1])
    after = results(shown)
    torch.testing.assert_close(after[1], expected(new, judge.case.init["eps"])[1])
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[2], before[2]), "it was woken up before the arguments came"


def test_links_and_chains_lie_at_other_places(side: KernelSide, chained) -> None:
    judge = chained()
    places = []
    for _ in range(2):
        judge.capture()
        places += [link._staging.tensors["arg.x"].data_ptr() for link in side._links]
    assert len(set(places)) == 2 * LINKS


def test_what_is_returned_of_lent_memory_is_shown_there(chained, tmp_path: Path) -> None:
    (tmp_path / "L1").mkdir()
    source = UNCAPTURABLE.replace("CONDITION", "False").replace("wide = x.double()", "return x")
    (tmp_path / "L1" / "rms_norm.py").write_text(source)
    judge = chained([str(tmp_path)])
    judge.side.settle(**judge.lend(drawn(judge.case, 9), 1))
    judge.side.prepare("eager", fresh=False, parameters=True)
    judge.side.go()
    (link,) = judge.gate.said.links
    slot = judge.hold.lent.ticket.slots["arg.x"]
    assert link["out.0"] == Spot(block=LENT, offset=slot.offset, bytes=slot.capacity)


UNCAPTURABLE = """
import torch
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.calls = eps, 0
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        self.calls += 1
        if CONDITION:
            raise RuntimeError("operation not permitted when stream is capturing")
        wide = x.double()
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight).to(x.dtype)
"""


def test_what_cannot_be_captured_is_called_by_a_link_of_its_own(chained, tmp_path: Path, monkeypatch) -> None:
    """It shows after each call where its result lies, and works on other memory when it is lent some."""
    (tmp_path / "L1").mkdir()
    source = UNCAPTURABLE.replace("CONDITION", "__import__('os').environ.get('FK_TEST_CAPTURES')")
    (tmp_path / "L1" / "rms_norm.py").write_text(source)
    judge = chained([str(tmp_path)])
    monkeypatch.setenv("FK_TEST_CAPTURES", "1")
    answer = judge.capture()
    monkeypatch.delenv("FK_TEST_CAPTURES")
    assert not answer["captured"]
    assert "not permitted" in answer["detail"]
    assert answer["outputs"] == []
    assert answer["shown"] is None
    inputs = drawn(judge.case, 9)
    judge.side.settle(**judge.lend(inputs, 1))
    for seed, fresh in ((9, False), (10, True), (11, False)):
        inputs = drawn(judge.case, seed)
        lent = judge.lend({}, 1) if fresh else {}
        judge.give(inputs)
        judge.side.prepare("eager", fresh=fresh, parameters=True, **lent)
        assert judge.side.go() == {"ns": 1000}
        judge.side.inspect([])
        torch.testing.assert_close(results(judge.gate.said), expected(inputs, judge.case.init["eps"]))
