"""What rows will hold, against growing them one position at a time."""

from __future__ import annotations

import numpy as np
import pytest

from fastkernels.engine.core.admission import Demand
from fastkernels.engine.core.cache import BlockGroup

SIZE = 4


def grown(own: list[int], left: list[int]) -> int:
    """The most blocks that rows hold at a time, each a position longer with every step."""
    most = 0
    for step in range(max(left) + 1):
        alive = [o + step for o, r in zip(own, left) if r >= step]
        most = max(most, sum(-(-length // SIZE) for length in alive))
    return most


@pytest.mark.parametrize("seed", range(20))
def test_most_is_what_growing_the_rows_gives(seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 40))
    own, left = rng.integers(1, 200, rows), rng.integers(0, 200, rows)
    demand = Demand(BlockGroup(1, 8, 2, SIZE), own.astype(float), left.astype(float), others=3)
    # Half a block a row is an average: exact within the other half.
    assert demand.most() == pytest.approx(3 + grown(own.tolist(), left.tolist()), abs=rows / 2 + 1)


def test_fits_at_and_not_below_the_most():
    demand = Demand(BlockGroup(1, 8, 2, SIZE), np.array([8.0, 8.0]), np.array([0.0, 40.0]), others=0)
    most = int(np.ceil(demand.most()))
    assert most < 16, "the first has ended before the second has grown"
    assert demand.fits(most)
    assert not demand.fits(most - 1)


def test_rows_behind_a_window_do_not_grow_beyond_it():
    group = BlockGroup(1, 8, 2, SIZE, window=8)
    demand = Demand(group, np.array([4.0]), np.array([1000.0]), others=0).plus(2000.0, 0.0, 0)
    assert demand.most() == 2 * group.window_blocks


def test_nobody_needs_nothing():
    assert Demand(BlockGroup(1, 8, 2, SIZE), np.zeros(0), np.zeros(0), others=0).fits(0)
