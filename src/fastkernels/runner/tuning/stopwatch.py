"""How long each implementation of a case's kernels takes, in this process.

    timed = Stopwatch("cuda").times(case, looked, budget_s=0.2, tell=tell)

Times are those of the judge's contracts (measure/contracts.py): on a GPU `graph`, chains of captured calls
from a cold L2, as decoding runs them; `host` on a CPU. Where one cannot be captured, all are timed `eager`,
too, as prefill runs: with plans that were made before, as of a step of many layers. Readings of all
implementations take turns. What a call changes stays changed for the next one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from fastkernels import kernels
from fastkernels.kernels.plans import capturing, plan_scope
from fastkernels.loader.materialize import Call
from fastkernels.loader.overlay import Overlay
from fastkernels.measure import stats, threads
from fastkernels.measure.cold import l2_flush
from fastkernels.measure.contracts import CudaDevice, Eager, Graph, Host
from fastkernels.measure.cuda import Driver
from fastkernels.measure.room import in_short
from fastkernels.records import UNSTABLE_HALF_WIDTH, Case, Contract, Device, TunedRow, Untimed
from fastkernels.runner.tuning.calls import (
    Forced,
    alone,
    declined,
    first_tensor,
    links,
    not_timed,
    noting,
    require_device,
    using,
)
from fastkernels.runner.tuning.look import IMPORT_S, Called, Looked, Tell

ROUNDS, ENOUGH = 10, 0.005  # of readings, until all medians are known as well as this
_SPIN_S, _CYCLES_S = 100e-6, 2e9  # the device stands still while this much of the host's work is done

Reader = Callable[[], float]  # microseconds of one call


@dataclass(frozen=True)
class Timed:
    rows: tuple[TunedRow, ...]
    untimed: tuple[Untimed, ...]


class Stopwatch:
    """Of one process, whose device nobody else uses meanwhile."""

    def __init__(self, device: Device) -> None:
        self._device: Device = device
        self._gpu = _Gpu() if device == "cuda" else None

    def times(self, case: Case, looked: Looked, budget_s: float, tell: Tell) -> Timed:
        """Of every implementation that served the case at the first look."""
        calls = links(case, Overlay.over_baseline(), self._device, looked.plan)
        rows: list[TunedRow] = []
        untimed: list[Untimed] = []
        for called in looked.called:
            with torch.inference_mode():
                for one in self._contracts(calls, called, tell):
                    untimed += [not_timed(case, called.kernel, name, why) for name, why in one.failed.items()]
                    before = self._held_up()
                    sampled = _sampled(one.readers, budget_s)
                    held_up = before or self._held_up()
                    for name, found in sampled.items():
                        if why := _unstable(found, held_up):
                            untimed.append(not_timed(case, called.kernel, name, why))
                        else:
                            rows.append(_row(case, called, name, one, found))
        return Timed(tuple(rows), tuple(untimed))

    def _held_up(self) -> str | None:
        return threads.held_up() if self._gpu is None else None

    def _contracts(self, calls: Sequence[Call], called: Called, tell: Tell) -> Iterator[_UnderContract]:
        """Ready to be read, one after another."""
        by_name = {name: using(called.kernel, name) for name in called.served}
        if self._gpu is None:
            found = {name: _of_host(calls[0], each) for name, each in by_name.items()}
            yield _UnderContract("host", found, called.chosen, {})
            return
        kernel, chosen = kernels.registered[called.kernel], [called.chosen]
        uncaptured = False

        def note(args: Sequence[Any]) -> None:
            if capturing(first_tensor(args)):
                chosen.append(kernel.choose(args))

        with ExitStack() as opened:
            readers: dict[str, Reader] = {}
            failed: dict[str, str] = {}
            for name, each in by_name.items():
                tell(called.kernel, name, IMPORT_S)
                try:
                    with noting(kernel, note), each():
                        readers[name] = self._gpu.captured(calls, opened)
                except Exception:  # it has no `graph` row: it is not captured, or `declined` says why
                    require_device(self._device)
                    if (why := declined(calls[-1], each)) is None:
                        uncaptured = True
                    else:
                        failed[name] = why
            yield _UnderContract("graph", readers, chosen[-1], failed)
        if not uncaptured:
            return
        readers, failed = {}, {}
        with plan_scope(frozen=True):
            for name, each in by_name.items():
                tell(called.kernel, name, IMPORT_S)
                try:
                    readers[name] = self._gpu.eager(calls, each)
                except Exception as error:
                    require_device(self._device)
                    failed[name] = in_short(error)
            yield _UnderContract("eager", readers, called.chosen, failed)


@dataclass(frozen=True)
class _UnderContract:
    """How implementations are read, what the table chooses of them, and what failed."""

    contract: Contract
    readers: dict[str, Reader]
    chosen: str
    failed: dict[str, str]


def _unstable(found: stats.Interval, held_up: str | None) -> str | None:
    """Why readings are no time; None for those that are one."""
    if held_up:
        return f"unstable, about {found.median:.4g} us: {held_up}"
    if found.half_width > UNSTABLE_HALF_WIDTH:
        known = f"is known to {100 * found.half_width:.0f} % only"
        return f"unstable: of {found.n} readings the median of about {found.median:.4g} us {known}"
    return None


def _row(case: Case, called: Called, name: str, under: _UnderContract, found: stats.Interval) -> TunedRow:
    return TunedRow(
        task=case.task,
        case=case.id,
        kernel=called.kernel,
        implementation=name,
        us=found.median,
        chosen=name == under.chosen,
        contract=under.contract,
        size=called.size,
        dtype=called.dtype,
        noise_pct=100 * found.half_width,
        difference=called.served[name],
    )


class _Ahead:
    """Before the first event the L2 cache is flushed, and the device stands still until the host has enqueued
    what follows."""

    def __init__(self, seconds: float) -> None:
        self._flush, self._cycles = l2_flush(torch.cuda.current_device()), int(_CYCLES_S * seconds)

    def begin(self) -> None:
        self._flush()
        torch.cuda._sleep(self._cycles)

    def end(self) -> None:
        """Nobody waits for a word."""


class _Gpu:
    def __init__(self) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the primary context current in this thread
        self._device = CudaDevice(Driver())
        self._overhead_ns = self._device.overhead_ns()

    def captured(self, calls: Sequence[Call], opened: ExitStack) -> Reader:
        """Of a chain of them. Raises what cannot be captured."""
        graph = Graph(self._device)
        graph.hold = _Ahead(_SPIN_S)
        opened.callback(graph.release)
        graph.capture([alone(call) for call in calls])
        return lambda: self._us(graph.run(_nothing, _nothing, _ignore)) / len(calls)

    def eager(self, calls: Sequence[Call], forced: Forced) -> Reader:
        """Of one after another, whose launches are enqueued while the device stands still."""
        eager = Eager(self._device)
        enqueued_s = 0.0
        for call in calls:
            with forced(), call.ambient():
                call.run()
                torch.cuda.synchronize()
                begin = time.perf_counter()
                call.run()
                enqueued_s = time.perf_counter() - begin
                torch.cuda.synchronize()
        eager.hold = _Ahead(_SPIN_S + 2 * enqueued_s)
        turns = itertools.cycle(calls)

        def read() -> float:
            call = next(turns)
            with forced(), call.ambient():
                return self._us(eager.run(_nothing, call.run, _ignore))

        return read

    def _us(self, ns: int) -> float:
        return max(ns - self._overhead_ns, 1) / 1e3


def _of_host(call: Call, forced: Forced) -> Reader:
    host = Host()

    def read() -> float:
        with forced(), call.ambient():
            return host.run(_nothing, call.run, _ignore) / 1e3

    return read


def _sampled(readers: Mapping[str, Reader], budget_s: float) -> dict[str, stats.Interval]:
    """Median readings: the first of each is forgotten, the others take turns."""
    if not readers:
        return {}
    for read in readers.values():
        read()
    values: dict[str, list[float]] = {name: [] for name in readers}
    names, end = list(readers), time.perf_counter() + budget_s
    while True:
        for number in range(ROUNDS):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                values[name].append(readers[name]())
        found = {name: stats.few_interval(own) for name, own in values.items()}
        if time.perf_counter() > end or all(one.half_width <= ENOUGH for one in found.values()):
            return found


def _nothing() -> None:
    """Nothing is staged: inputs lie where they are."""


def _ignore(result: Any) -> None:
    """Nobody reads results."""
