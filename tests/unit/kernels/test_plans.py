"""plan_scope: one plan for the same tensors, none where they differ, changed or left the scope."""

import pytest
import torch

from fastkernels.kernels.plans import is_planned, know, lease, on_host, plan_scope, planned


class Counted:
    """A maker of plans that knows how often it was asked."""

    def __init__(self):
        self.made = 0

    def __call__(self):
        self.made += 1
        return self.made


def test_without_a_scope_every_call_plans():
    make, lens = Counted(), torch.ones(3)
    assert [planned("a", (lens,), 0, make) for _ in range(3)] == [1, 2, 3]


def test_a_scope_plans_once_for_equal_slices():
    make, lens = Counted(), torch.arange(6)
    with plan_scope():
        assert [planned("a", (lens[:4],), 0, make) for _ in range(3)] == [1, 1, 1]
        assert planned("a", (lens[:5],), 0, make) == 2
        assert planned("a", (lens[1:5],), 0, make) == 3
        assert planned("a", (lens[:4],), 1, make) == 4
        assert planned("b", (lens[:4],), 0, make) == 5
    with plan_scope():
        assert planned("a", (lens[:4],), 0, make) == 6


def test_a_written_tensor_is_planned_anew():
    make, lens = Counted(), torch.ones(3)
    with plan_scope():
        planned("a", (lens,), 0, make)
        lens += 1
        assert planned("a", (lens,), 0, make) == 2


def test_freed_memory_is_not_mistaken():
    """The scope keeps what it planned from: no new tensor gets the address of a plan's own."""
    make = Counted()
    with plan_scope():
        addresses = set()
        for _ in range(5):
            lens = torch.ones(1000)
            addresses.add(lens.data_ptr())
            planned("a", (lens,), 0, make)
        assert make.made == len(addresses) == 5


def test_inference_tensors_have_no_version():
    make = Counted()
    with torch.inference_mode(), plan_scope():
        lens = torch.ones(3)
        assert [planned("a", (lens,), 0, make) for _ in range(2)] == [1, 1]


def test_scopes_nest():
    make, lens = Counted(), torch.ones(3)
    with plan_scope():
        planned("a", (lens,), 0, make)
        with plan_scope():
            assert planned("a", (lens,), 0, make) == 2
        assert planned("a", (lens,), 0, make) == 1


def test_a_frozen_scope_is_shared_and_admits_capture():
    make, lens = Counted(), torch.ones(3)
    with plan_scope(frozen=True):
        assert not is_planned("a", (lens,), 0)
        with plan_scope():
            planned("a", (lens,), 0, make)
        lens.copy_(torch.ones(3))
        with plan_scope():
            assert is_planned("a", (lens,), 0)
            assert planned("a", (lens,), 0, make) == 1
    assert not is_planned("a", (lens,), 0)
    with plan_scope():
        planned("a", (lens,), 0, make)
        assert not is_planned("a", (lens,), 0)


def test_leases_return_when_the_scope_ends():
    pool, made = [], []

    def make():
        made.append(object())
        return made[-1]

    with plan_scope():
        first, second = lease(pool, make), lease(pool, make)
        assert first is not second
        assert pool == []
    assert set(map(id, pool)) == {id(first), id(second)}
    assert lease(pool, make) in made
    assert len(pool) == len(made) == 2


def test_what_is_not_free_is_not_leased():
    pool, made = [[1], [2], [3]], []
    with plan_scope():
        assert lease(pool, list, lambda one: one != [1]) == [2]
        assert pool == [[1], [3]]
        assert lease(pool, lambda: made.append(1) or [4], lambda one: False) == [4]
    assert made == [1]
    assert pool == [[1], [3], [2], [4]]


@pytest.fixture
def copies(monkeypatch):
    """The tensors that were copied to the host."""
    seen, cpu = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: seen.append(x) or cpu(x))
    return seen


def test_what_a_scope_knows_is_not_copied(copies):
    lens, other = torch.tensor([5, 6, 7, 8], dtype=torch.int32), torch.arange(4, dtype=torch.int32)
    host = lens + 100  # unlike the device's, to tell them apart
    with plan_scope(known=[(lens, host)]):
        assert on_host(lens).tolist() == [105, 106, 107, 108]
        assert on_host(lens[1:3]).tolist() == [106, 107]
        assert on_host(lens[3:]).tolist() == [108]
        shifted = lens[1:] - 1
        assert on_host(shifted).tolist() == [5, 6, 7]
        know(shifted, lens, lambda x: x[1:] - 1)
        assert on_host(shifted).tolist() == [105, 106, 107]
        assert len(copies) == 1
        assert on_host(other).tolist() == [0, 1, 2, 3]
        assert on_host(lens[::2]).tolist() == [5, 7]
        assert on_host(lens.view(torch.int16)).tolist() == [5, 0, 6, 0, 7, 0, 8, 0]
        know(made := other + 1, other, lambda x: x + 1)
        assert on_host(made).tolist() == [1, 2, 3, 4]
    assert on_host(lens).tolist() == [5, 6, 7, 8]


def test_a_scope_ends_with_its_error():
    pool = []

    def fail():
        with plan_scope():
            lease(pool, object)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert len(pool) == 1
    make, lens = Counted(), torch.ones(1)
    assert [planned("a", (lens,), 0, make) for _ in range(2)] == [1, 2]
