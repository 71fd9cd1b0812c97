"""Cache declarations, their pools, and the ambient step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastkernels.nn.cache import (
    CacheOwner,
    Paged,
    State,
    allocate,
    allocate_states,
    cache_groups,
    cache_owners,
    state_groups,
)
from fastkernels.nn.context import step, use_step
from tests.helpers import make_positions, make_step, make_tables


class Owner(CacheOwner):
    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.cache = Paged((2, 8), window)


def test_equal_declarations_share_a_group_and_not_a_pool():
    model = nn.Sequential(Owner(None), nn.Identity(), Owner(4), Owner(None))
    assert [name for name, _ in cache_owners(model)] == ["0", "2", "3"]
    assert cache_groups(model) == [Paged((2, 8)), Paged((2, 8), 4)]
    pools = allocate(model, [5, 7], 16, torch.bfloat16, "cpu")
    assert {name: tuple(pool.shape) for name, pool in pools.items()} == {
        f"{name}.{cache}": (blocks, 16, 2, 8)
        for name, blocks in (("0", 5), ("2", 7), ("3", 5))
        for cache in ("k_cache", "v_cache")
    }
    assert [owner.group for _, owner in cache_owners(model)] == [0, 1, 0]
    assert model[0].k_cache is pools["0.k_cache"]
    assert len({pool.data_ptr() for pool in pools.values()}) == 6
    assert all(pool.dtype == torch.bfloat16 and not pool.any() for pool in pools.values())


def test_a_lone_owner_has_no_prefix():
    assert set(allocate(Owner(None), 2, 4, torch.float32, "cpu")) == {"k_cache", "v_cache"}


class Keeper(CacheOwner):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cache = State((("matrix", (2, width)), ("tail", (3,))))


def test_states_of_equal_declarations_share_an_allocation():
    model = nn.Sequential(Keeper(8), Owner(None), Keeper(4), Keeper(8))
    assert cache_groups(model) == [Paged((2, 8))], "a state has no block tables"
    assert state_groups(model) == [Keeper(8).cache, Keeper(4).cache]
    states = allocate_states(model, 5, torch.bfloat16, "cpu")
    assert [tuple(state.shape) for state in states] == [(2, 5, 2, 8), (2, 5, 3), (1, 5, 2, 4), (1, 5, 3)]
    assert all(state.dtype == torch.float32 and not state.any() for state in states)
    states[0][1, 3] = 7
    assert (model[3].matrix[3] == 7).all()
    assert not model[0].matrix.any()
    assert [owner.group for _, owner in cache_owners(model) if isinstance(owner, Keeper)] == [0, 1, 0]
    assert set(allocate(model, 2, 4, torch.float32, "cpu")) == {"1.k_cache", "1.v_cache"}


def test_the_step_is_ambient_and_nests():
    outer, inner = make_step([3], [3]), make_step([1], [9])
    with pytest.raises(RuntimeError, match="No step in flight"):
        step()
    with use_step(outer):
        with use_step(inner):
            assert step() is inner
        assert step() is outer
    with pytest.raises(RuntimeError, match="No step in flight"):
        step()


def test_a_failing_body_gives_the_step_back():
    with pytest.raises(ValueError, match="of the body"), use_step(make_step([3], [3])):
        raise ValueError("of the body")
    with pytest.raises(RuntimeError, match="No step in flight"):
        step()


def test_make_step_describes_a_mixed_batch():
    generator = torch.Generator().manual_seed(0)
    made = make_step([1, 1, 3, 5], [9, 4, 3, 8], block_size=4, num_blocks=20, generator=generator, groups=2)
    assert made.query_starts_B1.tolist() == [0, 1, 2, 5, 10]
    assert (made.num_decodes, made.max_query_len, made.max_seq_len) == (2, 5, 9)
    assert make_positions([1, 1, 3, 5], [9, 4, 3, 8]).tolist() == [8, 3, 0, 1, 2, 3, 4, 5, 6, 7]
    for table, slots in zip(made.block_tables_GBN, made.slots_GT, strict=True):
        used = table[table > 0].tolist()
        assert len(used) == len(set(used)) == 3 + 1 + 1 + 2
        assert slots[0] == table[0, 2] * 4
        assert len(set(slots.tolist())) == 10
        assert slots.min() >= 4
    assert not torch.equal(*made.block_tables_GBN)


def test_make_step_refuses_what_no_engine_would_send():
    with pytest.raises(ValueError, match="decode rows"):
        make_step([3, 1], [3, 5])
    with pytest.raises(ValueError, match="too few"):
        make_tables([32], block_size=4, num_blocks=8)
