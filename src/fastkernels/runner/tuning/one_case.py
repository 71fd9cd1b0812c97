"""One case in this process: what its kernels' implementations make of it, and how long each takes.

    looked = look(case, "cuda")             each implementation once, which compiles it; results compared
    timed = Stopwatch("cuda").times(case, looked, budget_s=0.2)

Times are those of the judge's contracts (measure/contracts.py): on a GPU `graph`, chains of captured calls
from a cold L2, as decoding runs them; `host` on a CPU. Where one cannot be captured, all are timed `eager`,
too, as prefill runs: with plans that were made before, as of a step of many layers. Readings of all
implementations take turns. There is no judge beside them: implementations are our own, and so is the process.
What a call changes stays changed for the next one.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastkernels import kernels, registry
from fastkernels.errors import KernelError
from fastkernels.kernels.base import Kernel
from fastkernels.kernels.plans import capturing, plan_scope
from fastkernels.loader import views
from fastkernels.loader.inputs import draw_links, trial_specs
from fastkernels.loader.materialize import Call, bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure import chain, roofline, stats
from fastkernels.measure.ceilings import ceilings
from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.cold import l2_flush
from fastkernels.measure.contracts import CudaDevice, Eager, Graph, Host
from fastkernels.measure.cuda import Driver
from fastkernels.measure.room import in_short, is_the_machines
from fastkernels.records import UNSTABLE_HALF_WIDTH, Case, Contract, Device, TunedRow, Untimed

# Fewer than the judge's 64: what is chosen may be 3 % from the best, a judged win is of 1 %.
MOST_LINKS = 16
ROUNDS, ENOUGH = 10, 0.005  # of readings, until all medians are known as well as this
# At a first look, beside other processes: what takes this much longer than another is not worth its readings.
MUCH_SLOWER, MUCH_LONGER_S = 10, 5e-3
IMPORT_S = 40.0  # for the library of an implementation, which several processes import at a time
_SEED = 20261128
_SPIN_S, _CYCLES_S = 100e-6, 2e9  # the device stands still while this much of the host's work is done

# A kernel and its implementation, whose first call begins; seconds that it may take beyond the limit.
Tell = Callable[[str, str, float], None]
Reader = Callable[[], float]  # microseconds of one call
Forced = Callable[[], AbstractContextManager[None]]  # what makes a kernel's implementation run in the body


@dataclass(frozen=True)
class Called:
    """A kernel of a case: `served` has how far each implementation's results are from the first one's."""

    kernel: str
    size: int
    dtype: str
    chosen: str
    served: Mapping[str, float]


@dataclass(frozen=True)
class Looked:
    plan: ChainPlan
    called: tuple[Called, ...]
    untimed: tuple[Untimed, ...]


@dataclass(frozen=True)
class Timed:
    rows: tuple[TunedRow, ...]
    untimed: tuple[Untimed, ...]


# ---------------------------------------------------------------- the first look


def look(case: Case, device: Device, skip: frozenset[tuple[str, str]], is_alone: bool, tell: Tell) -> Looked:
    """Calls of every implementation that is installed and takes the case, but for those of `skip`. Raises
    what CUDA raises where the device is lost, or has no memory left while it is not alone there."""
    overlay = Overlay.over_baseline()
    (call,) = _links(case, overlay, device, ChainPlan())
    before = {name: value.clone() for name, value in call.mutable.items()}
    found: list[Called] = []
    untimed: list[Untimed] = []
    for name in registry.task(case.task).kernels:
        kernel = kernels.registered[name]
        tell(name, "", IMPORT_S)
        if (first := _first_call(kernel, call)) is None:
            continue
        size, dtype, chosen = first
        seen: dict[str, tuple[float, float]] = {}  # difference, seconds of a second call
        right: dict[str, Any] | None = None
        for other in (chosen, *(n for n in kernel.names if n != chosen)):
            if (name, other) in skip or not _is_here(kernel, other, device):
                continue
            tell(name, other, IMPORT_S)
            try:
                if (implementation := kernel.implementation(other)) is not None:
                    implementation.function(name)  # imports its library
                tell(name, other, 0.0)
                outputs, seconds = _looked_at(call, {name: other}, before, device)
                right = right or outputs
                seen[other] = difference(right, outputs, before), seconds
            except KernelError:
                continue  # does not take this case
            except Exception as error:
                _require_device(device)
                if not is_alone and is_the_machines(error):
                    raise
                untimed.append(_untimed(case, name, other, in_short(error)))
                continue
        fastest = min((seconds for _, seconds in seen.values()), default=0.0)
        slow = {
            other: seconds
            for other, (_, seconds) in seen.items()
            if seconds > MUCH_SLOWER * fastest + MUCH_LONGER_S and other != chosen
        }
        for other, seconds in slow.items():
            why = f"took {1e3 * seconds:.3g} ms at a first look, another {1e3 * fastest:.3g}"
            untimed.append(_untimed(case, name, other, why))
        served = {other: apart for other, (apart, _) in seen.items() if other not in slow}
        found.append(Called(name, size, dtype, chosen, served))
    return Looked(_plan(case, overlay, device), tuple(found), tuple(untimed))


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any], before: Mapping[str, Tensor]) -> float:
    """The largest over the outputs: relative L2 distance, of what a call changes over the change; of whole
    numbers the share that differs."""
    return max((_apart(theirs[n], ours[n], before.get(n)) for n in theirs), default=0.0)


def _apart(theirs: Any, ours: Any, before: Tensor | None) -> float:
    if not isinstance(theirs, Tensor) or not theirs.numel():
        return 0.0
    is_same = theirs == ours
    if not theirs.is_floating_point():
        return 1 - float(is_same.float().mean())
    off = float(torch.linalg.vector_norm(torch.where(is_same, 0, ours - theirs), dtype=torch.float32))
    whole = theirs if before is None else theirs - before
    scale = float(torch.linalg.vector_norm(whole, dtype=torch.float32))
    return 0.0 if off == 0 else off / scale if scale > 0 and off == off else float("inf")


def _looked_at(
    call: Call, forced: Mapping[str, str], before: Mapping[str, Tensor], device: Device
) -> tuple[dict[str, Any], float]:
    """What a call returns, and the seconds of a second one."""
    for name, value in before.items():
        call.mutable[name].copy_(value)
    with torch.inference_mode(), kernels.use(**forced), call.ambient():
        outputs = {name: value.clone() for name, value in call.outputs(call.run()).items()}
        _wait(device)
        begin = time.perf_counter()
        call.run()
        _wait(device)
    return outputs, time.perf_counter() - begin


class _Reached(BaseException):
    """No error: the call has come to the kernel."""


def _first_call(kernel: Kernel, call: Call) -> tuple[int, str, str] | None:
    """Of a case: its size, the dtype of its first tensor and what the table chooses. None: it never comes."""
    found: list[tuple[int, str, str]] = []

    def reached(args: Sequence[Any]) -> None:
        size = kernel.rows(*args) if kernel.rows else 0
        found.append((size, str(_first_tensor(args).dtype).removeprefix("torch."), kernel.choose(args)))
        raise _Reached

    with torch.inference_mode(), call.ambient(), _noting(kernel, reached):
        try:
            call.run()
        except _Reached:
            return found[0]
    return None


def _first_tensor(args: Sequence[Any]) -> Tensor:
    return next(arg for arg in args if isinstance(arg, Tensor))


@contextmanager
def _noting(kernel: Kernel, note: Callable[[Sequence[Any]], None]) -> Iterator[None]:
    original = Kernel.__call__

    def noting(self: Kernel, *args: Any, impl: str | None = None) -> Any:
        if self is kernel:
            note(args)
        return original(self, *args, impl=impl)

    Kernel.__call__ = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        Kernel.__call__ = original  # type: ignore[method-assign]


def _is_here(kernel: Kernel, name: str, device: Device) -> bool:
    implementation = kernel.implementation(name)
    return implementation is None or implementation.not_here(device) is None


def _declined(call: Call, forced: Forced) -> str | None:
    """Why an implementation does not take a call, captured or not: it took one in another layout."""
    try:
        with forced(), call.ambient():
            call.run()
    except KernelError as error:
        return f"does not take the model's layout: {in_short(error)}"
    return None


def _require_device(device: Device) -> None:
    """Raises where no later call can be made."""
    _wait(device)


def _wait(device: Device) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# ---------------------------------------------------------------- times


class Stopwatch:
    """Of one process, whose device nobody else uses meanwhile."""

    def __init__(self, device: Device) -> None:
        self._device: Device = device
        self._gpu = _Gpu() if device == "cuda" else None

    def times(self, case: Case, looked: Looked, budget_s: float, tell: Tell) -> Timed:
        """Of every implementation that served the case at the first look."""
        calls = _links(case, Overlay.over_baseline(), self._device, looked.plan)
        rows: list[TunedRow] = []
        untimed: list[Untimed] = []
        for called in looked.called:
            with torch.inference_mode():
                for one in self._contracts(calls, called, tell):
                    untimed += [_untimed(case, called.kernel, name, why) for name, why in one.failed.items()]
                    for name, found in _sampled(one.readers, budget_s).items():
                        if found.half_width <= UNSTABLE_HALF_WIDTH:
                            rows.append(_row(case, called, name, one, found))
                            continue
                        why = f"{found.n} readings: the median of about {found.median:.4g} us is known to "
                        why += f"{100 * found.half_width:.0f} % only"
                        untimed.append(_untimed(case, called.kernel, name, why))
        return Timed(tuple(rows), tuple(untimed))

    def _contracts(self, calls: Sequence[Call], called: Called, tell: Tell) -> Iterator[_UnderContract]:
        """Ready to be read, one after another."""
        forced = {name: _forced(called, name) for name in called.served}
        if self._gpu is None:
            found = {name: _of_host(calls[0], each) for name, each in forced.items()}
            yield _UnderContract("host", found, called.chosen, {})
            return
        kernel, chosen = kernels.registered[called.kernel], [called.chosen]
        uncaptured = False

        def note(args: Sequence[Any]) -> None:
            if capturing(_first_tensor(args)):
                chosen.append(kernel.choose(args))

        with ExitStack() as opened:
            readers: dict[str, Reader] = {}
            failed: dict[str, str] = {}
            for name, each in forced.items():
                tell(called.kernel, name, IMPORT_S)
                try:
                    with _noting(kernel, note), each():
                        readers[name] = self._gpu.captured(calls, opened)
                except Exception:
                    _require_device(self._device)
                    if (why := _declined(calls[-1], each)) is None:
                        uncaptured = True
                    else:
                        failed[name] = why
            yield _UnderContract("graph", readers, chosen[-1], failed)
        if not uncaptured:
            return
        readers, failed = {}, {}
        with plan_scope(frozen=True):
            for name, each in forced.items():
                tell(called.kernel, name, IMPORT_S)
                try:
                    readers[name] = self._gpu.eager(calls, each)
                except Exception as error:
                    _require_device(self._device)
                    failed[name] = in_short(error)
            yield _UnderContract("eager", readers, called.chosen, failed)


@dataclass(frozen=True)
class _UnderContract:
    """How implementations are read, what the table chooses of them, and what failed."""

    contract: Contract
    readers: dict[str, Reader]
    chosen: str
    failed: dict[str, str]


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
        graph.capture([_alone(call) for call in calls])
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


# ---------------------------------------------------------------- calls


def _links(case: Case, overlay: Overlay, device: Device, plan: ChainPlan) -> list[Call]:
    """Calls with tensors of their own, in models' layouts by turns."""
    calls: list[Call] = []
    specs = trial_specs(case, build_module(overlay, case, "meta"))
    drawn = draw_links(specs, case, _SEED, plan.links_of, device=device)
    arguments = views.arguments(case)
    for link in range(plan.links):
        shared = calls[0].module if calls and plan.shares_parameters else None
        module = shared or build_module(overlay, case, device)
        tensors = {name: values[min(link, len(values) - 1)] for name, values in drawn.items()}
        if views.are_in(arguments) and views.is_strided(link):
            tensors = views.as_in_model(arguments, tensors)
        calls.append(bind(module, case, tensors, load=shared is None))
    return calls


def _plan(case: Case, overlay: Overlay, device: Device) -> ChainPlan:
    if device == "cpu":
        return ChainPlan()
    specs = trial_specs(case, build_module(overlay, case, "meta"))
    work = roofline.work(case, overlay)
    plan = chain.of_trial(specs, roofline.floor_s(work, ceilings("cuda")), work.read_bytes)
    return dataclasses.replace(plan, links=min(plan.links, MOST_LINKS))


def _alone(call: Call) -> Callable[[], Any]:
    def run() -> Any:
        with call.ambient():
            return call.run()

    return run


def _forced(called: Called, name: str) -> Forced:
    return partial(kernels.use, **{called.kernel: name})


def _untimed(case: Case, kernel: str, implementation: str, why: str) -> Untimed:
    return Untimed(task=case.task, case=case.id, kernel=kernel, implementation=implementation, why=why)


def _nothing() -> None:
    """Nothing is staged: inputs lie where they are."""


def _ignore(result: Any) -> None:
    """Nobody reads results."""
