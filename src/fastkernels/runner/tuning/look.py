"""A first look at a case: what its kernels' implementations make of it, each once, which compiles it.

    looked = look(case, "cuda", frozenset(), is_alone=True, tell=tell)

There is no judge beside them: implementations are our own, and so is the process. What a call changes is put
back for the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastkernels import kernels, registry
from fastkernels.errors import KernelError
from fastkernels.kernels.base import Kernel
from fastkernels.loader.materialize import Call
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.room import in_short, is_the_machines
from fastkernels.records import Case, Device, Untimed
from fastkernels.runner.tuning.calls import (
    chain_of,
    first_tensor,
    links,
    not_timed,
    noting,
    require_device,
    wait,
)

# Beside other processes: what takes this much longer than another is not worth its readings.
MUCH_SLOWER, MUCH_LONGER_S = 10, 5e-3
IMPORT_S = 40.0  # for the library of an implementation, which several processes import at a time

# A kernel and its implementation, whose first call begins; seconds that it may take beyond the limit.
Tell = Callable[[str, str, float], None]


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


def look(case: Case, device: Device, skip: frozenset[tuple[str, str]], is_alone: bool, tell: Tell) -> Looked:
    """Calls of every implementation that is installed and takes the case, but for those of `skip`. Raises
    what CUDA raises where the device is lost, or has no memory left while it is not alone there."""
    overlay = Overlay.over_baseline()
    (call,) = links(case, overlay, device, ChainPlan())
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
                require_device(device)
                if not is_alone and is_the_machines(error):
                    raise
                untimed.append(not_timed(case, name, other, in_short(error)))
                continue
        fastest = min((seconds for _, seconds in seen.values()), default=0.0)
        slow = {
            other: seconds
            for other, (_, seconds) in seen.items()
            if seconds > MUCH_SLOWER * fastest + MUCH_LONGER_S and other != chosen
        }
        for other, seconds in slow.items():
            why = f"took {1e3 * seconds:.3g} ms at a first look, another {1e3 * fastest:.3g}"
            untimed.append(not_timed(case, name, other, why))
        served = {other: apart for other, (apart, _) in seen.items() if other not in slow}
        found.append(Called(name, size, dtype, chosen, served))
    return Looked(chain_of(case, overlay, device), tuple(found), tuple(untimed))


NOT_ALIKE = 1e9  # where one is not finite, or all zero: JSON knows no infinity


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
    apart = off / scale if scale > 0 else NOT_ALIKE
    return 0.0 if off == 0 else apart if apart < NOT_ALIKE else NOT_ALIKE


def _looked_at(
    call: Call, forced: Mapping[str, str], before: Mapping[str, Tensor], device: Device
) -> tuple[dict[str, Any], float]:
    """What a call returns, and the seconds of a second one."""
    for name, value in before.items():
        call.mutable[name].copy_(value)
    with torch.inference_mode(), kernels.use(**forced), call.ambient():
        outputs = {name: value.clone() for name, value in call.outputs(call.run()).items()}
        wait(device)
        begin = time.perf_counter()
        call.run()
        wait(device)
    return outputs, time.perf_counter() - begin


class _Reached(BaseException):
    """No error: the call has come to the kernel."""


def _first_call(kernel: Kernel, call: Call) -> tuple[int, str, str] | None:
    """Of a case: its size, the dtype of its first tensor and what the table chooses. None: it never comes."""
    found: list[tuple[int, str, str]] = []

    def reached(args: Sequence[Any]) -> None:
        size = kernel.rows(*args) if kernel.rows else 0
        found.append((size, str(first_tensor(args).dtype).removeprefix("torch."), kernel.choose(args)))
        raise _Reached

    with torch.inference_mode(), call.ambient(), noting(kernel, reached):
        try:
            call.run()
        except _Reached:
            return found[0]
    return None


def _is_here(kernel: Kernel, name: str, device: Device) -> bool:
    implementation = kernel.implementation(name)
    return implementation is None or implementation.not_here(device) is None
