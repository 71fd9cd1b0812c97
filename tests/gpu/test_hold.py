"""A device between two words of the judge's: nothing before the first, and all of it before the second."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastkernels.measure.cuda import Driver
from fastkernels.runner.transfer.gpu_hold import Held, Hold

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


@pytest.fixture
def hold():
    torch.zeros(1, device="cuda")
    made = Hold()
    made.shut()
    yield made
    made.release()
    made.close()


def nothing(rank: int) -> None: ...


def worker(hold: Hold, stream: torch.cuda.Stream) -> Held:
    """A worker's end in this process, which cannot share memory with itself: its words are the judge's. What
    is armed waits for all streams of a process, and comes first here."""
    words: Any = SimpleNamespace(address=hold._ends[0].address)
    return Held(words, Driver(), stream.cuda_stream)


def work(hold: Hold, stream: torch.cuda.Stream, call: Callable[[], object]) -> None:
    """A worker's call on its stream."""
    end = worker(hold, stream)
    with torch.cuda.stream(stream):
        end.begin()
        call()
        end.end()


def test_a_device_waits_for_the_judge_and_the_judge_for_the_device(hold: Hold) -> None:
    inbox, outbox, kept = (torch.zeros(1000, device="cuda") for _ in range(3))
    given = torch.zeros(1000, device="cuda")
    torch.add(inbox, inbox, out=outbox)  # code is loaded at its first use, which may wait for the device
    for number in range(3):
        given.fill_(number + 1)
        hold.shut()
        outbox.zero_()
        torch.cuda.synchronize()
        hold.arm(lambda rank: inbox.copy_(given), lambda rank: kept.copy_(outbox))
        work(hold, torch.cuda.Stream(), lambda: torch.add(inbox, inbox, out=outbox))
        assert not hold.passed(0.05), "nobody has let it go"
        hold.open()
        assert hold.passed(2.0)
        assert 0 < hold.device_ns() < 20_000_000
        assert torch.equal(kept, 2 * given)


def test_a_rank_that_is_late_begins_when_it_is_let_go(hold: Hold) -> None:
    hold.arm(nothing, nothing, late=0)
    work(hold, torch.cuda.Stream(), lambda: None)
    hold.open(late=0)
    assert not hold.passed(0.05)
    hold.let_go(0)
    assert hold.passed(2.0)


def test_a_hold_that_is_released_leaves_nothing_waiting(hold: Hold) -> None:
    stream = torch.cuda.Stream()
    work(hold, stream, lambda: None)
    assert not stream.query()
    hold.release()  # before anything was armed
    stream.synchronize()
    hold.shut()
    hold.arm(nothing, nothing)
    hold.open()
    assert not hold.passed(0.05), "no worker says that it is done"
    hold.release()
    torch.cuda.synchronize()


def test_a_window_is_the_devices_time(hold: Hold) -> None:
    """Ten spins that differ by 0.2 ms each: windows do, too, whatever the host is doing."""
    stream, windows_ns = torch.cuda.Stream(), []
    torch.cuda._sleep(1)  # its code is loaded now
    for cycles in range(0, 3_000_000, 300_000):
        hold.shut()
        hold.arm(nothing, nothing)
        work(hold, stream, lambda cycles=cycles: torch.cuda._sleep(cycles))
        time.sleep(0.001)
        hold.open()
        assert hold.passed(2.0)
        windows_ns.append(hold.device_ns())
    steps_ns = [later - earlier for earlier, later in pairwise(windows_ns)]
    assert 0.75 < min(steps_ns) / max(steps_ns) <= 1, windows_ns


def test_a_call_finds_the_cache_cold(hold: Hold) -> None:
    """A sum over a tensor that fits the L2 cache, and was read just before."""
    x, stream = torch.ones(8 << 20, device="cuda"), torch.cuda.Stream()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    took_ms = {}
    for cools in (lambda: None, hold._ends[0].cool):
        hold._ends[0].cool = cools
        for _ in range(5):
            hold.shut()
            hold.arm(lambda rank: x.sum(), nothing)
            work(hold, stream, lambda: (events[0].record(), x.sum(), events[1].record()))
            hold.open()
            assert hold.passed(2.0)
            torch.cuda.synchronize()
            took_ms[cools] = events[0].elapsed_time(events[1])
    warm_ms, cold_ms = took_ms.values()
    assert cold_ms > 1.1 * warm_ms
