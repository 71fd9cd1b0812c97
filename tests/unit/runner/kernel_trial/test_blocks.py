"""Blocks: what counts, and that identical code comes out as identical."""

import numpy as np

from fastkernels.runner.kernel_trial.blocks import Blocks
from fastkernels.runner.worker.reading import Reading


def reading(ns: float, hidden: bool = True, clock: int | None = None, waits: bool = False) -> Reading:
    return Reading(ns, round(ns), 0, hidden, clock, 1, (), {}, {}, waits=waits)


def filled(factor: float, count: int = 2000, seed: int = 0) -> Blocks:
    """Calls with a long tail to one side, as on a busy machine; the candidate is `factor` times as fast."""
    noise = np.random.default_rng(seed)
    blocks = Blocks()
    for index in range(count):
        a, c, a2 = 30_000 * (1 + noise.exponential(0.3, size=3))
        blocks.add(index, reading(a), reading(c / factor), reading(a2))
    return blocks


def test_identical_code_is_as_fast_as_itself_although_there_are_two_baselines() -> None:
    interval = filled(1.0).speedup()
    assert interval.low < 1 < interval.high
    assert abs(interval.median - 1) < 0.01


def test_a_faster_candidate_is_as_much_faster_as_it_is() -> None:
    interval = filled(1.5).speedup()
    assert interval.low < 1.5 < interval.high
    assert interval.half_width < 0.03


def test_samples_whose_launch_was_not_hidden_are_dropped() -> None:
    blocks = Blocks()
    blocks.add(0, reading(1), reading(1, hidden=False), reading(1))
    blocks.add(1, reading(1), reading(1), reading(1))
    assert (len(blocks.c), blocks.dropped) == (1, 1)


def test_throttled_blocks_are_dropped() -> None:
    blocks = Blocks()
    for index in range(10):
        slow = 1200 if index == 3 else 1980
        blocks.add(index, reading(1, clock=1980), reading(1, clock=slow), reading(1, clock=1980))
    kept = blocks.unthrottled()
    assert (len(kept.c), kept.dropped) == (9, 1)
    assert kept.rounds == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert Blocks().unthrottled().c == []


def test_calls_that_wait_count_and_are_known() -> None:
    blocks = Blocks()
    blocks.add(0, reading(1, waits=True), reading(1), reading(1))
    assert not blocks.candidate_waits
    assert not blocks.baseline_waits, "one of two baselines: a hiccup"
    blocks.add(1, reading(1), reading(1, waits=True), reading(1))
    assert blocks.candidate_waits
    blocks.add(2, reading(1, waits=True), reading(1), reading(1, waits=True))
    assert blocks.baseline_waits
    assert len(blocks.c) == 3
