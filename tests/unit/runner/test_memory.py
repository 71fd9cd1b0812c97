"""A worker's memory in the judge's hands."""

import ctypes
import mmap
import socket
import sys
from pathlib import Path

import pytest
import torch

from fastkernels.runner import memory
from fastkernels.runner.memory import Memory, NoMemory, as_bytes, borrowed
from fastkernels.runner.pool import Worker
from tests.unit.runner.test_pool import MODULES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture
def own():
    """This process's memory, as a worker lends it."""
    memory.open_own()
    found = lent()
    yield found
    found.close()


def lent() -> Memory:
    ours, theirs = socket.socketpair()
    with ours:
        assert memory.lend(theirs.detach())
        return borrowed(ours)


def test_what_is_written_is_there_and_what_is_there_is_read(own: Memory) -> None:
    x, y = torch.arange(5000, dtype=torch.bfloat16).view(50, 100), torch.zeros(50, 100, dtype=torch.bfloat16)
    own.write(y.data_ptr(), as_bytes(x))
    assert torch.equal(x, y)
    own.read(x.data_ptr(), as_bytes(z := torch.empty_like(x)))
    assert torch.equal(x, z)


def test_memory_that_may_be_mapped_twice_is_told_apart(own: Memory) -> None:
    mine, others = torch.zeros(4096), mmap.mmap(-1, 8192)
    shared = torch.frombuffer(others, dtype=torch.uint8).data_ptr()
    assert not own.shared([(mine.data_ptr(), mine.nbytes), (shared, 0)])
    assert own.shared([(mine.data_ptr(), mine.nbytes), (shared + 8191, 1)])
    assert own.shared([(shared - 8, 9)])
    del shared


def test_it_is_lent_once(own: Memory) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        assert not memory.lend(theirs.detach())


@pytest.mark.parametrize("address", [0, 4096, 2**63 - 8, 2**47])
def test_what_is_nowhere_is_said(own: Memory, address: int) -> None:
    with pytest.raises(NoMemory, match="16 bytes at 0x"):
        own.read(address, torch.empty(16, dtype=torch.uint8))
    with pytest.raises(NoMemory, match="16 bytes at 0x"):
        own.write(address, torch.empty(16, dtype=torch.uint8))


class Held:
    """A side with a buffer; it tells where, and what is in it."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(b"before")

    def where(self) -> dict:
        return {"address": ctypes.addressof(self._buffer)}

    def what(self) -> dict:
        return {"held": self._buffer.value.decode()}


@pytest.mark.parametrize("ours", [True, False])
def test_a_standing_worker_is_written_to_and_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """Behind its walls, and where it is hidden from everybody (our own code)."""
    monkeypatch.setenv("PYTHONPATH", MODULES)
    caches = tmp_path if ours else None
    with Worker("held", 1, shared_caches=caches, namespaces=not ours, user=not ours, on_cpu=True) as worker:
        worker.start(f"{__name__}:Held")
        assert worker.memory is not None
        address = worker.call("where")["address"]
        worker.pause()
        worker.memory.write(address, as_bytes(torch.tensor(list(b"after."), dtype=torch.uint8)))
        assert worker.call("what") == {"held": "after."}
        worker.pause()
        worker.memory.read(address, held := torch.zeros(6, dtype=torch.uint8))
        assert bytes(held.tolist()) == b"after."
    assert worker.memory is None


@pytest.mark.parametrize("how", [{"on_cpu": False}, {"on_cpu": True, "processes": 2}])
def test_who_is_not_alone_lends_nothing(monkeypatch: pytest.MonkeyPatch, how: dict) -> None:
    monkeypatch.setenv("PYTHONPATH", MODULES)
    with Worker("held", 1, **how) as worker:
        worker.start(f"{__name__}:Held")
        assert worker.memory is None
