"""Layouts: what a correct paged kernel relies on, and what a wrong one would trip over."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fastkernels.errors import BaselineError
from fastkernels.loader.batches import Layout, layout, pool_blocks, varied
from fastkernels.records import Batch

BATCHES = [
    Batch(rows=((3, 1, 40), (1, 5, 5), (1, 17, 33))),
    Batch(rows=((64, 1, 128),)),
    Batch(rows=((1, 1, 1),)),
    Batch(rows=((2, 16, 16), (1, 1, 1)), block_size=4),
]


@pytest.fixture(params=BATCHES, ids=lambda batch: str(batch.rows))
def laid(request) -> Layout:
    return layout(request.param, pool_blocks(request.param), seed=7)


def test_metadata_follows_the_batch(laid: Layout):
    batch = laid.batch
    assert laid.query_starts.dtype == laid.seq_lens.dtype == laid.block_tables.dtype == torch.int32
    assert laid.positions.dtype == laid.slots.dtype == torch.int64
    assert laid.query_starts.diff().tolist() == batch.query_lens
    assert laid.query_starts[0] == 0
    assert laid.seq_lens.tolist() == batch.seq_lens
    starts = laid.query_starts.tolist()
    for row, (query, seq) in enumerate(zip(batch.query_lens, batch.seq_lens)):
        assert laid.positions[starts[row] : starts[row + 1]].tolist() == list(range(seq - query, seq))


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: str(batch.rows))
def test_another_step_has_as_many_of_everything_and_no_longer_requests(batch: Batch):
    for seed in range(20):
        other = varied(batch, seed)
        assert other.num_decodes == batch.num_decodes
        assert sorted(other.query_lens) == sorted(batch.query_lens)
        begun = [[q for q, seq in zip(b.query_lens, b.seq_lens) if q == seq] for b in (batch, other)]
        assert sorted(begun[0]) == sorted(begun[1])
        assert pool_blocks(other) <= pool_blocks(batch)
        assert max(other.seq_lens) <= max(batch.seq_lens)


def test_lengths_vary_with_the_seed():
    lens = {tuple(varied(BATCHES[1], seed).seq_lens) for seed in range(5)}
    assert len(lens) == 5
    orders = {tuple(varied(BATCHES[3], seed).query_lens) for seed in range(20)}
    assert orders == {(16, 16, 1), (16, 1, 16), (1, 16, 16)}


def test_images_stay_in_the_order_of_their_grids():
    images = Batch(grids=((2, 3, 5), (1, 1, 7)))
    assert varied(images, 1) == images


def test_blocks_are_distinct_scattered_and_never_null(laid: Layout):
    used = []
    for row, seq in enumerate(laid.batch.seq_lens):
        count = -(-seq // laid.batch.block_size)
        table = laid.block_tables[row].tolist()
        assert table[count:] == [0] * (len(table) - count)
        assert all(after != before + 1 for before, after in pairwise(table[:count]))
        used += table[:count]
    assert len(set(used)) == len(used)
    assert min(used) > 0
    assert max(used) < laid.num_blocks
    assert len(used) < laid.num_blocks - 2, "some blocks belong to no row"


def test_slots_and_held_entries_agree_with_the_tables(laid: Layout):
    size, starts = laid.batch.block_size, laid.query_starts.tolist()
    for row in range(len(laid.batch.seq_lens)):
        for token in range(starts[row], starts[row + 1]):
            position = int(laid.positions[token])
            block = int(laid.block_tables[row, position // size])
            assert laid.slots[token] == block * size + position % size
    before, after = laid.held(with_queries=False), laid.held(with_queries=True)
    assert before.sum() == sum(laid.batch.seq_lens) - laid.batch.num_tokens
    assert after.sum() == sum(laid.batch.seq_lens)
    new = (after & ~before).view(-1).nonzero().squeeze(1)
    assert new.tolist() == sorted(laid.slots.tolist())


def test_layout_depends_on_the_seed_alone():
    batch = BATCHES[1]
    tables = [Layout(batch, pool_blocks(batch), seed).block_tables for seed in (1, 1, 2)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])


@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_tiny_pools_are_laid_out_downwards_if_need_be(blocks):
    batch = Batch(rows=((1, 1, 16 * (blocks - 1)),))
    table = layout(batch, blocks, seed=3).block_tables[0].tolist()
    assert sorted(table) == list(range(1, blocks))
    assert all(after != before + 1 for before, after in pairwise(table))


def test_a_pool_that_is_too_small_is_an_error():
    with pytest.raises(BaselineError, match="needs 3 blocks"):
        _ = layout(Batch(rows=((1, 40, 40),)), 3, seed=0).block_tables
