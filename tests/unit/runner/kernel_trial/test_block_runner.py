"""What is made of the captures of three sides."""

import random
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastkernels.loader.overlay import Overlay
from fastkernels.loader.ranks import own
from fastkernels.measure.chain import ChainPlan, of_ranks
from fastkernels.runner.kernel_trial.bench import Bench, Outcome
from fastkernels.runner.kernel_trial.block_runner import BlockRunner
from fastkernels.runner.worker.pool import WorkerDied
from fastkernels.runner.worker.reading import Reading
from fastkernels.runner.worker.worker_calls import Captured, Trouble
from tests.unit.runner.conftest import small_case, specs_of

TOGETHER = threading.Barrier(3, timeout=20)  # breaks unless all capture at once


class Side:
    """Runs kernel `eager` when it is called and `captured` in a chain; None: no capture; or it `dies`."""

    def __init__(self, eager: str, captured: str | None) -> None:
        self.kernels, self._captured = {"attend": eager}, captured
        self.settled = False
        self.prepares, self.worker = False, SimpleNamespace(restless=None)
        self.ran: list[list[int]] = []
        self.given: list[tuple[bool, dict[str, torch.Tensor]]] = []

    first_s = 0.5
    put_back = ()

    def load(self, *_, held: bool, baseline_s: float = 0.0) -> dict:
        assert not held
        return {}

    def give_boxes(self, *_) -> None: ...

    def unload(self) -> None: ...

    def iterate(
        self, inputs, contract, fresh, parameters, echo, echo_results, order, late, strided
    ) -> Reading:
        self.ran.append(order)
        self.given.append((strided, inputs))
        return Reading(1.0, 1, 1, True, None, 1, (), {}, {})

    def settle(self, arguments: dict[str, torch.Tensor]) -> None:
        assert {len(value) for value in arguments.values()} == {1}, "one link, whatever could be captured"
        self.settled = True

    def capture(self, plan: ChainPlan, arguments: dict[str, torch.Tensor]) -> Captured:
        assert {len(value) for value in arguments.values()} == {plan.links}
        TOGETHER.wait()
        if self._captured == "dies":
            raise Trouble("capture", WorkerDied("CRASHED", "gone", ""))
        kernels = {"attend": self._captured or ""}
        captured = self._captured is not None
        return Captured(captured=captured, detail="no", kernels=kernels, outputs=[], shown=None)


def lined_up(baseline, candidate, links: int = 2, task: str = "L1/rms_norm") -> tuple[BlockRunner, Outcome]:
    """With sides that are (eager, captured)."""
    case, outcome = small_case(task), Outcome(None, "graph")  # pyright: ignore[reportArgumentType]
    bench = Bench("cpu", "graph", 1.0, random.Random(0), Overlay.over_baseline())
    handles: Any = (Side(*baseline), Side(*candidate), Side(*baseline))
    runner = BlockRunner(bench, case, specs_of(case), set(), handles, (), {}, outcome, ChainPlan(links))
    assert runner.open() is None
    return runner, outcome


@pytest.mark.parametrize(
    ("baseline", "candidate", "contract", "captures", "notes"),
    [
        (("a", "a"), ("a", "a"), "graph", ("yes", "yes"), []),
        (
            ("a", "b"),
            ("a", "a"),
            "graph",
            ("yes", "yes"),
            ["captured, the baseline's attend is b; uncaptured it is a"],
        ),
        (("a", None), ("a", "a"), "eager", ("no", "yes"), ["the baseline cannot be captured: no"]),
        (("a", "a"), ("a", None), "eager", ("yes", "no"), ["the candidate cannot be captured: no"]),
        (("a", None), ("a", None), "eager", ("no", "no"), ["the baseline cannot be captured: no"]),
    ],
)
def test_what_is_captured(baseline, candidate, contract, captures, notes) -> None:
    runner, outcome = lined_up(baseline, candidate)
    assert runner.capture() is None
    runner.close()
    assert outcome.contract == contract
    assert (outcome.baseline_capture, outcome.capture) == captures, "each side alone"
    assert outcome.capture_detail == ("no" if captures[1] == "no" else None)
    assert [note.partition(": ")[2] for note in outcome.notes] == notes
    assert outcome.links == (2 if contract == "graph" else 1)
    assert {handle.settled for handle in runner.everybody} == {contract == "eager"}, "all, or none"  # type: ignore[attr-defined]


def test_links_run_in_an_order_that_nobody_knows_and_all_sides_in_the_same() -> None:
    runner, _ = lined_up(("a", "a"), ("a", "a"), links=16)
    assert runner.capture() is None
    for links in (None, None, [1, 4, 9], [3]):
        runner.block(runner.everybody, "graph", False, False, False, links)
    runner.block(runner.everybody, "host", False, False, False)
    runner.close()
    first, second, some, alone, uncaptured = runner.c.ran  # type: ignore[attr-defined]
    assert all(handle.ran == runner.c.ran for handle in runner.everybody)  # type: ignore[attr-defined]
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second != list(range(16))
    assert (sorted(some), alone) == ([1, 4, 9], [3])
    assert not uncaptured


def test_inputs_lie_as_in_the_model_in_every_second_call_and_link() -> None:
    runner, _ = lined_up(("a", "a"), ("a", "a"), links=3, task="L1/rope")
    assert runner.layouts == [None, None], "two calls have both"
    for _ in range(4):
        runner.refill("normal")
        runner.block(runner.everybody, "host", False, False, False)
    assert runner.capture() is None
    assert runner.layouts == [[0, 2], [1]]
    runner.refill("normal")
    runner.block(runner.everybody, "graph", False, False, False)
    runner.close()
    everybody: list[Any] = [*runner.everybody]
    assert len({tuple(strided for strided, _ in handle.given) for handle in everybody}) == 1
    *alone, (_, chain) = runner.c.given  # type: ignore[attr-defined]
    assert [strided for strided, _ in alone] == [False, True, False, True]
    assert {*chain} == {"arg.positions", "storage.query"}
    assert [*map(places_of, (given["storage.query"][0] for _, given in alone))] == [
        places_of(chain["storage.query"][link]) for link in (0, 1, 0, 1)
    ], "a chain's links are packed or not as single calls are"
    assert len({places_of(storage) for storage in chain["storage.query"]}) == 2


def places_of(storage: torch.Tensor) -> tuple[bool, ...]:
    """Where something lies."""
    return tuple((~storage.isnan()).tolist())


def test_inputs_that_no_model_hands_over_as_views_are_packed() -> None:
    runner, _ = lined_up(("a", "a"), ("a", "a"))
    for _ in range(3):
        runner.refill("normal")
        runner.block(runner.everybody, "host", False, False, False)
    runner.close()
    assert runner.layouts == [None]
    assert [strided for strided, _ in runner.c.given] == [False] * 3  # type: ignore[attr-defined]


def test_who_leaves_a_gpu_busy_has_no_other_turn() -> None:
    runner, _ = lined_up(("a", "a"), ("a", "a"))
    assert runner.idle_check is None, "no GPU"
    said = iter([None, None, None, "kept a GPU busy"])
    runner.idle_check = SimpleNamespace(broken=lambda worker: next(said))  # type: ignore[assignment]
    drawn = [0.05, 0.05, 0.05]  # everybody's turn begins with a look
    runner._bench.rng = SimpleNamespace(random=lambda: drawn.pop(0))  # type: ignore[assignment]
    assert isinstance(runner.block(runner.everybody, "host", False, False, False), dict)
    drawn += [0.3, 0.3, 0.3]  # only a baseline's right behind the candidate's
    found = runner.block(runner.everybody, "host", False, False, False)
    assert found.label == "TAMPERED(pause)"
    assert "the process kept a GPU busy while it was stopped" in found.failure.message
    assert [len(handle.ran) for handle in runner.everybody] == [2, 2, 1]  # type: ignore[attr-defined]
    drawn += [0.6, 0.1, 0.3]
    nobody = runner.block([runner.a, runner.a2, runner.c], "host", False, False, False)
    assert isinstance(nobody, dict), "nobody looks"


def test_as_many_of_each_sides_turns_begin_with_a_look() -> None:
    runner, _ = lined_up(("a", "a"), ("a", "a"))
    looked = Counter()
    coming: list[Any] = []
    runner.idle_check = SimpleNamespace(broken=lambda worker: looked.update([id(coming[-1])]))  # type: ignore[assignment]
    rng, count = random.Random(1), 20_000
    for _ in range(count):
        for handle in rng.sample(runner.everybody, 3):
            coming.append(handle)
            runner._left_busy(handle)
            runner._last = handle
    for handle in runner.everybody:
        assert looked[id(handle)] / count == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict"),
    [("dies", "dies", "INVALID_BASELINE"), ("a", "dies", "CRASHED"), ("dies", "a", "INVALID_BASELINE")],
)
@pytest.mark.parametrize("step", ["capture", "renew"])
def test_who_dies_while_all_capture(baseline, candidate, verdict, step) -> None:
    runner, outcome = lined_up(("a", baseline), ("a", candidate))
    found = getattr(runner, step)()
    runner.close()
    assert found.label == verdict
    assert "gone" in found.failure.message
    assert outcome.died is (verdict == "CRASHED")


def test_a_late_rank_has_other_inputs_until_they_are_completed() -> None:
    case = small_case("L1/all_reduce")
    outcome = Outcome(None, "collective")  # pyright: ignore[reportArgumentType]
    bench = Bench("cpu", "graph", 1.0, random.Random(0), Overlay.over_baseline())
    handles: Any = (Side("a", "a"), Side("a", "a"), Side("a", "a"))
    specs = own(specs_of(case))
    runner = BlockRunner(bench, case, specs, set(), handles, (), {}, outcome, of_ranks(case.ranks))
    assert runner.open() is None
    runner.refill("normal")
    late = runner._late(1)
    mixed = late.mixed
    inbox, right_R = runner._inbox, runner.inputs["arg.input_"]
    assert inbox is not None
    inbox.write(mixed)
    there_R = inbox.tensors["arg.input_"]
    assert torch.equal(there_R[0], right_R[0])
    assert not (there_R[1] == right_R[1]).any()
    late.complete()
    assert torch.equal(there_R, right_R)
    late.spoil()
    assert torch.equal(there_R[0], right_R[0])
    assert not (there_R[1] == right_R[1]).any()
    assert late.rank == 1
    del there_R
    runner.close()
