"""Who has a GPU alone reads its memory in equal times; beside work of another process it takes longer."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastkernels.measure.sole import SoleUse
from fastkernels.runner.worker.gpu_idle_check import SHARED, GpuIdleCheck

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

OTHER = """
import sys, torch
source = torch.zeros(1 << 28, dtype=torch.uint8, pin_memory=True)
target = source.to("cuda")
torch.cuda._sleep(1)
torch.cuda.synchronize()
if sys.argv[1] == "kernel":
    torch.cuda._sleep(1 << 62)
for _ in range(4000 if sys.argv[1] == "copies" else 0):
    target.copy_(source, non_blocking=True)
print("begun", flush=True)
sys.stdin.read()
"""


@contextmanager
def beside(what: str) -> Iterator[subprocess.Popen]:
    """A process that has enqueued this for some seconds, and waits."""
    command = [sys.executable, "-c", OTHER, what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def use() -> SoleUse:
    return SoleUse([0])


def test_alone_reads_take_as_long_as_ever(use: SoleUse) -> None:
    slowdowns = [use.slowdown() for _ in range(30)]
    print(f"alone {min(slowdowns):.3f} to {max(slowdowns):.3f}")
    assert max(slowdowns) < SHARED


@pytest.mark.parametrize(("what", "least"), [("nothing", 1.0), ("kernel", 1.5), ("copies", SHARED)])
def test_beside_another_process(use: SoleUse, what: str, least: float) -> None:
    with beside(what):
        slowdowns = [use.slowdown() for _ in range(20)]
    print(f"beside {what} {min(slowdowns):.3f} to {max(slowdowns):.3f}")
    assert min(slowdowns) >= least
    assert (statistics.median(slowdowns) > SHARED) == (what != "nothing")


@pytest.mark.parametrize("what", ["kernel", "copies"])
def test_whose_work_it_is_shows_when_the_process_has_ended(use: SoleUse, what: str) -> None:
    with beside(what) as process:

        def close() -> None:
            process.kill()
            process.wait()

        worker: Any = SimpleNamespace(close=close)
        how = GpuIdleCheck(use).broken(worker)
    assert how is not None
    assert "kept a GPU busy" in how
