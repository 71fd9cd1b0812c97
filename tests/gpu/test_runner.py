"""The parts of a trial that only a GPU has: raw driver calls, memory shared by IPC, device contracts."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fastkernels.measure import unused
from fastkernels.measure.cold import L2Flush
from fastkernels.measure.contracts import CudaDevice, Eager, Graph
from fastkernels.measure.cuda import Driver
from fastkernels.runner.transfer.shared_memory import Arena, Want

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device():
    torch.zeros(1, device="cuda")
    return CudaDevice(Driver())


class Busy:
    """In the place of the judge's hold: a device that has something else to do while work is enqueued."""

    def __init__(self, flush: Callable[[], None] = lambda: None) -> None:
        self._flush = flush

    def begin(self) -> None:
        torch.cuda._sleep(400_000)
        self._flush()

    def end(self) -> None: ...


def timed(contract: Eager, call: Callable[[], object] = lambda: None, hold: Busy | None = None) -> int:
    contract.hold = hold or Busy()
    return contract.run(lambda: None, call, lambda result: None)


def test_an_arena_holds_what_is_written_and_shares_no_block() -> None:
    wanted = [Want("x", (10,), torch.float32, links=2)]
    one, two = (Arena.create(wanted, "cuda", writable=True) for _ in range(2))
    one.write({"x": torch.arange(20.0, device="cuda").view(2, 10)})
    two.poison()
    assert one.tensors["x"].flatten().tolist() == list(range(20))
    assert two.tensors["x"].isnan().all()
    assert abs(one.bytes.data_ptr() - two.bytes.data_ptr()) >= 2 << 20
    one.close()
    two.close()


@pytest.mark.parametrize("contract", ["eager", "graph"])
def test_a_copy_takes_as_long_as_its_bytes_need(device: CudaDevice, contract: str) -> None:
    source = torch.ones(256 << 20, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    chosen = Eager(device) if contract == "eager" else Graph(device)
    if isinstance(chosen, Graph):
        chosen.capture([lambda: target.copy_(source)])
    samples = [timed(chosen, lambda: target.copy_(source)) for _ in range(20)]
    bytes_per_s = 2 * source.numel() / (statistics.median(samples) / 1e9)
    assert 0.1e12 < bytes_per_s < 20e12


def test_memory_of_dropped_chains_goes_back(device: CudaDevice) -> None:
    """A chain's graphs keep what their calls take, 512 MiB here; dropped ones must not add up beside it."""
    x = torch.ones(64 << 20, dtype=torch.float32, device="cuda")
    unused.give_back()
    free_before, _ = torch.cuda.mem_get_info()
    graph = Graph(device)
    for _ in range(8):
        graph.release()
        unused.give_back(256 << 20)
        graph.capture([lambda: (x + 1).sum() + (x - 1).sum()])
    free_after, _ = torch.cuda.mem_get_info()
    assert free_before - free_after < 2 << 30
    graph.release()
    unused.give_back()


def test_the_flush_makes_the_cache_cold(device: CudaDevice) -> None:
    """A sum over a tensor that fits the L2 cache takes longer from memory."""
    x = torch.ones(8 << 20, dtype=torch.float32, device="cuda")
    graph, flush = Graph(device), L2Flush(Driver(), torch.cuda.Stream())
    graph.capture([lambda: x.sum()])
    cold, warm = (
        statistics.median(timed(graph, hold=hold) for _ in range(30)) for hold in (Busy(flush), Busy())
    )
    assert cold > 1.1 * warm


def test_a_call_that_waits_for_the_device_cannot_be_captured(device: CudaDevice) -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError):
        Graph(device).capture([lambda: x.sum().item()])
    torch.cuda.synchronize()
    assert x.sum().item() == 4


def test_a_chain_runs_its_links_in_order_and_each_to_its_end(device: CudaDevice) -> None:
    x = torch.zeros(1 << 20, device="cuda")
    graph = Graph(device)
    graph.capture([lambda: x.mul_(2), lambda: x.add_(1), lambda: x.mul_(3)])
    x.zero_()
    timed(graph)
    assert x.unique().tolist() == [3.0]
    timed(graph)
    assert x.unique().tolist() == [21.0]
    graph.choose([2, 0, 1])
    graph.prepare()
    timed(graph)
    assert x.unique().tolist() == [127.0]
    graph.release()


def test_links_that_need_memory_run_in_any_order(device: CudaDevice) -> None:
    x, graph = torch.ones(1 << 20, device="cuda"), Graph(device)
    results = graph.capture([lambda n=n: (x + n) * x for n in range(8)])
    for order in (range(8), reversed(range(8)), (3, 6, 1, 0, 7, 5, 2, 4)):
        for result in results:
            result.zero_()
        graph.choose(list(order))
        graph.prepare()
        timed(graph)
        assert [result.unique().tolist() for result in results] == [[1.0 + n] for n in range(8)]
    graph.release()


def test_a_link_runs_alone(device: CudaDevice) -> None:
    tensors = [torch.zeros(1 << 16, device="cuda") for _ in range(3)]
    graph = Graph(device)
    graph.capture([lambda x=x: x.add_(1) for x in tensors])
    for x in tensors:
        x.zero_()
    graph.choose([1])
    graph.prepare()
    timed(graph)
    graph.choose([0, 1, 2])
    graph.prepare()
    timed(graph)
    # The next one has woken it up.
    assert [x.unique().tolist() for x in tensors] == [[1.0], [2.0], [2.0]]


def test_work_that_a_call_leaves_on_another_stream_cannot_be_captured(device: CudaDevice) -> None:
    """Or a link could run while the next is timed."""
    x, side = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()

    def leaves_work():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul_(2)
        return x

    with pytest.raises(RuntimeError):
        Graph(device).capture([leaves_work, leaves_work])
    torch.cuda.synchronize()
    Graph(device).capture([lambda: x + 1])


def test_two_links_take_twice_as_long_as_one(device: CudaDevice) -> None:
    """Of calls that are long beside their launch."""
    tensors = [torch.ones(32 << 20, device="cuda") for _ in range(2)]

    def median_ns(calls) -> float:
        graph = Graph(device)
        graph.capture(calls)
        return statistics.median(timed(graph) for _ in range(30))

    one, two = (median_ns([lambda x=x: x.mul_(1) for x in tensors[:n]]) for n in (1, 2))
    assert 1.8 < two / one < 2.1


@pytest.mark.slow
@pytest.mark.parametrize(("contract", "tokens"), [("graph", 512), ("eager", 8192), ("host", 8192)])
def test_the_baseline_equals_itself(contract: str, tokens: int) -> None:
    """A chain holds short calls still; a single one must be long for its two processes to agree. What the
    host does is on some machines too uneven for a number: then there must be none."""
    from fastkernels.measure import roofline
    from fastkernels.measure.ceilings import ceilings
    from fastkernels.runner.kernel_trial.request import KernelsRequest
    from fastkernels.runner.kernel_trial.run import run_kernels

    # A copy of 1 GiB that is measured here is no ceiling for one of which the cache holds a part.
    most_pct = 100 * roofline.MARGIN if ceilings("cuda").measured_here else 110
    report = run_kernels(
        KernelsRequest(
            targets=("rms_norm",),
            case_glob=f"llama-8b-T{tokens}-D4096-*bf16",
            size="full",
            device="cuda",
            self_test=True,
            contract=contract,
        )
    )
    assert report.rows
    for row in report.rows:
        assert row.contract == contract
        if contract == "host" and row.verdict == "UNSTABLE":
            assert row.speedup is None
            continue
        assert row.verdict == "PASSED", row.failure
        assert row.capture == ("yes" if contract == "graph" else "n/a")
        assert 0.95 < (row.speedup or 0) < 1.05
        assert 0 < (row.roofline_pct or 0) <= most_pct


def test_a_template_never_touches_the_device() -> None:
    """A process that is forked from one that did cannot use it."""
    from fastkernels.runner.worker import template
    from fastkernels.runner.worker.pool import Worker

    with Worker("w", threads=4) as worker:
        hello = worker.start("fastkernels.runner.inside.kernel_side:KernelSide", device="cuda", threads=4)
        assert hello["overhead_ns"] > 0
        pid = list(template._templates.values())[-1].process.pid
        assert touches_the_device(worker.pid)
        assert not touches_the_device(pid)
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1


def touches_the_device(pid: int) -> bool:
    return any("nvidia" in os.readlink(place) for place in Path(f"/proc/{pid}/fd").iterdir())
