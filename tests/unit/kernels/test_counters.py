"""Zeros that launches share: who gets which."""

from itertools import pairwise

import pytest
import torch

from fastkernels.kernels import counters

DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(counters, "_of_stream", {})
    monkeypatch.setattr(counters, "_spare", {DEVICE: torch.zeros(96, dtype=torch.int32)})


def test_a_stream_keeps_its_counters_and_has_more_where_needed(monkeypatch):
    first = counters.zeroed(5, DEVICE)
    assert first.dtype == torch.int32
    assert counters.zeroed(32, DEVICE) is first
    larger = counters.zeroed(33, DEVICE)
    assert len(larger) == 64
    assert counters.zeroed(5, DEVICE) is larger
    monkeypatch.setattr(counters, "_stream", lambda device: 1)
    assert counters.zeroed(5, DEVICE) is not larger


def test_captured_calls_share_none(monkeypatch):
    eager = counters.zeroed(40, DEVICE)
    monkeypatch.setattr(counters, "_capturing", lambda device: True)
    given = [counters.zeroed(count, DEVICE) for count in (5, 64, 5, 200)]
    assert [len(zeros) for zeros in given] == [32, 64, 32, 224]
    places = [range(zeros.data_ptr(), zeros.data_ptr() + zeros.nbytes) for zeros in (eager, *given)]
    starts = sorted(places, key=lambda place: place.start)
    assert all(a.stop <= b.start for a, b in pairwise(starts))
    assert not any(zeros.any() for zeros in given)
