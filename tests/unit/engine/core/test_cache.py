"""Blocks of rows: who has which, what a window frees, what comes back."""

from __future__ import annotations

import numpy as np
import pytest

from fastkernels.engine.core.cache import BlockCache, BlockGroup


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def make(window: int | None = None, num_blocks: int = 20) -> BlockGroup:
    return BlockGroup(num_rows=4, max_len=64, num_blocks=num_blocks, block_size=4, window=window)


def test_rows_get_distinct_blocks_and_never_the_null_block():
    group = make()
    diff = group.take(ints(1, 3), ints(9, 4))
    assert diff.rows.tolist() == [1, 1, 1, 3]
    assert diff.indices.tolist() == [0, 1, 2, 0]
    assert len(set(diff.blocks.tolist())) == 4
    assert 0 not in diff.blocks
    assert group.num_free == 15
    assert group.take(ints(1, 3), ints(12, 4)).rows.size == 0
    assert group.take(ints(1, 3), ints(13, 4)).indices.tolist() == [3]


def test_diff_does_not_change_when_blocks_are_handed_out_again():
    group = make()
    diff = group.take(ints(1), ints(40))
    before = diff.blocks.tolist()
    group.release(1)
    group.take(ints(2, 3), ints(20, 20))
    assert diff.blocks.tolist() == before


def test_blocks_that_are_not_free_are_not_handed_out():
    with pytest.raises(AssertionError, match="promised"):
        make(num_blocks=3).take(ints(1), ints(9))


@pytest.mark.parametrize(("scheduled", "freed"), [(0, 0), (7, 0), (8, 0), (9, 0), (10, 1), (13, 1), (14, 2)])
def test_window_frees_what_no_later_query_reads(scheduled, freed):
    """Window 7: a query at position p reads p-6 .. p; the block of positions 0..3 is dead from p = 10 on."""
    group = make(window=7)
    group.take(ints(1), ints(20))
    free = group.num_free
    group.slide(ints(1), ints(scheduled))
    assert group.num_free == free + freed
    group.slide(ints(1), ints(scheduled))
    assert group.num_free == free + freed, "freed twice"
    group.release(1)
    assert group.num_free == 19


def test_reach_is_what_a_row_could_hold_with_every_free_block():
    group = make(num_blocks=6)
    group.take(ints(1, 2), ints(5, 3))
    assert group.reach(1) == (2 + 2) * 4
    assert group.reach(3) == 2 * 4


def test_window_lets_a_long_request_fit_a_small_cache():
    assert not BlockCache([make(num_blocks=8)]).fits_alone(40)
    assert BlockCache([make(num_blocks=8, window=8)]).fits_alone(40)
    assert not BlockCache([make(num_blocks=4, window=8)]).fits_alone(40)
    assert not BlockCache([make(num_blocks=8, window=8), make(num_blocks=8)]).fits_alone(40)
