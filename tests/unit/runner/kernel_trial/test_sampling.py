"""Which blocks a trial has beside those that count."""

import dataclasses
import random
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastkernels.loader.overlay import Overlay
from fastkernels.measure.chain import ChainPlan
from fastkernels.runner.kernel_trial import claim_checks
from fastkernels.runner.kernel_trial.bench import Bench, Outcome
from fastkernels.runner.kernel_trial.sampling import LEAST_ASIDE, Sampling
from fastkernels.runner.worker.reading import Reading, mean


class Lined:
    """A line-up whose calls take 2 us and a little, and note which links run."""

    def __init__(self, links: int, ranks: int = 1, has_lengths: bool = False) -> None:
        self.plan, self.ranks, self.has_lengths = ChainPlan(links), ranks, has_lengths
        self.a, self.c, self.a2 = (SimpleNamespace(prepares=False) for _ in range(3))
        self.everybody = [self.a, self.c, self.a2]
        self.ran: list[list[int] | None] = []
        self.layouts: list[list[int] | None] = [None]  # of the inputs
        self.renewed = 0
        self.others: list[str] = []  # of each block, in which something is other than in those that count
        self._rng = random.Random(7)

    def refill(self, distribution: str, parameters: bool, other_lengths: bool) -> None:
        self.has_new_parameters = parameters
        self.others.append("lengths" if other_lengths else "")

    def renew(self) -> None:
        self.renewed += 1

    def inputs_of(self, links: list[int] | None) -> dict:
        assert links == self.ran[-1]
        return {}

    def block(self, order, contract: str, links: list[int] | None, parameters: bool, **how: Any) -> dict:
        assert parameters is (links is None), "a part of a chain has the parameters that are there"
        self.ran.append(links)
        if how["late"] is not None:
            assert how["late"] in range(self.ranks)
            self.others[-1] = "late"
        running = range(self.plan.links) if links is None else links
        return {id(handle): self._reading(len(running)) for handle in order}

    def _reading(self, running: int) -> Reading:
        ns = 2000 * self._rng.uniform(0.999, 1.001)
        claimed_ns = round(ns * running)
        return Reading(ns, claimed_ns, claimed_ns + 1, True, None, 1, ({},) * running, {}, {})


@pytest.mark.parametrize(("links", "halved"), [(8, True), (2, False), (1, False)])
def test_now_and_then_one_link_runs_alone_and_half_of_them_without_the_others(links, halved) -> None:
    lined, outcome = Lined(links), Outcome(None, "graph")  # pyright: ignore[reportArgumentType]
    bench = Bench("cuda", "graph", 0.01, random.Random(0), Overlay.over_baseline())
    referee: Any = SimpleNamespace(judge=lambda *_: None)
    sampled: Any = Sampling(bench, lined, referee, outcome).run()  # type: ignore[arg-type]
    parts = [part for part in lined.ran if part is not None]
    assert all(part == sorted(set(part)) and set(part) <= set(range(links)) for part in parts)
    alone, half = ([part for part in parts if len(part) == size] for size in (1, 4))
    assert len(alone) == len(sampled.alone.c)
    assert len(half) == len(sampled.half.c)
    assert (len(alone) >= claim_checks.MIN_PARTS) is (links > 1)
    assert (len(half) >= claim_checks.MIN_PARTS) is halved
    if halved:
        assert len({tuple(part) for part in half}) > 1, "whichever"
    assert len(parts) == len(alone) + len(half)
    assert len(sampled.blocks.c) + 3 == lined.ran.count(None), "three warm up, and the others count"
    assert (lined.renewed > 0) is (links > 1)


def test_a_link_alone_is_one_of_each_layout_of_the_inputs() -> None:
    lined, outcome = Lined(4), Outcome(None, "graph")  # pyright: ignore[reportArgumentType]
    lined.layouts = [[0, 2], [1, 3]]
    bench = Bench("cuda", "graph", 0.01, random.Random(0), Overlay.over_baseline())
    referee: Any = SimpleNamespace(judge=lambda *_: None)
    sampled: Any = Sampling(bench, lined, referee, outcome).run()  # type: ignore[arg-type]
    alone = [part for part in lined.ran if part is not None and len(part) == 1]
    assert len(alone) == 2 * len(sampled.alone.c) >= 2 * claim_checks.MIN_PARTS
    assert [part[0] % 2 for part in alone] == [0, 1] * len(sampled.alone.c)
    assert len(sampled.blocks.c) + 3 == lined.ran.count(None), "a chain has both"


def test_a_sample_of_uncaptured_calls_is_the_mean_over_one_of_each_layout() -> None:
    lined, outcome = Lined(1), Outcome(None, "host")  # pyright: ignore[reportArgumentType]
    lined.layouts = [None, None]
    bench = Bench("cpu", "host", 0.01, random.Random(0), Overlay.over_baseline())
    referee: Any = SimpleNamespace(judge=lambda *_: None)
    sampled: Any = Sampling(bench, lined, referee, outcome).run()  # type: ignore[arg-type]
    assert 2 * (len(sampled.blocks.c) + 3) == len(lined.ran)


def test_the_mean_of_readings_has_all_their_numbers() -> None:
    one = Reading(2.0, 10, 20, True, 1900, 1, ({},), {}, {})
    other = dataclasses.replace(one, ns=4.0, claimed_ns=30, window_ns=60, hidden=False, clock_mhz=1800)
    found = mean([one, dataclasses.replace(other, waits=True)])
    assert (found.ns, found.claimed_ns, found.window_ns) == (3.0, 20, 40)
    assert (found.hidden, found.waits, found.clock_mhz) == (False, True, 1800)
    assert mean([one]) is one


class Heavy(Lined):
    """Whose results are gigabytes."""

    def __init__(self, links: int) -> None:
        super().__init__(links)
        self.given: list[weakref.ref] = []

    def renew(self) -> None:
        super().renew()
        self._require_room()

    def block(self, *arguments: Any, **how: Any) -> dict:
        self._require_room()
        return super().block(*arguments, **how)

    def _reading(self, running: int) -> Reading:
        result = torch.zeros(running)
        self.given.append(weakref.ref(result))
        return dataclasses.replace(super()._reading(running), outputs={"out.0": result})

    def _require_room(self) -> None:
        assert not any(result() is not None for result in self.given)


def test_results_of_a_block_are_gone_before_the_next_one() -> None:
    lined, outcome = Heavy(8), Outcome(None, "graph")  # pyright: ignore[reportArgumentType]
    bench = Bench("cuda", "graph", 0.01, random.Random(0), Overlay.over_baseline())
    referee: Any = SimpleNamespace(judge=lambda *_: None)
    Sampling(bench, lined, referee, outcome).run()  # type: ignore[arg-type]
    assert len(lined.given) > 30
    assert lined.renewed


@pytest.mark.parametrize(("ranks", "has_lengths"), [(1, False), (1, True), (2, False), (2, True)])
def test_other_lengths_and_late_ranks_come_however_short_a_trial_is(ranks, has_lengths) -> None:
    """A candidate that keeps what it has learnt after some calls meets them after that."""
    lined, outcome = Lined(1, ranks, has_lengths), Outcome(None, "host")  # pyright: ignore[reportArgumentType]
    bench = Bench("cpu", "host", 0.01, random.Random(0), Overlay.over_baseline())
    bench.rng.random = lambda: 0.99  # none is drawn
    referee: Any = SimpleNamespace(judge=lambda *_: None)
    sampled: Any = Sampling(bench, lined, referee, outcome).run()  # type: ignore[arg-type]
    wanted = ["lengths"] * (LEAST_ASIDE * has_lengths) + ["late"] * (LEAST_ASIDE * (ranks > 1))
    counted = len(sampled.blocks.c) + 3
    assert lined.others == [""] * counted + wanted
