"""Which kernels that production runs this machine has not, and a baseline is therefore without."""

from __future__ import annotations

from functools import cache

from fastkernels import kernels, registry
from fastkernels.records import Device
from fastkernels.registry import uses
from fastkernels.registry.schema import ProductionClass


@cache
def absent(task: str, device: Device) -> tuple[str, ...]:
    """Classes of `registry/production.yaml` of which no implementation is installed for an operation of the
    task, or of a task below it. None on a CPU: production runs them on GPUs."""
    if device == "cpu":
        return ()
    called = {kernel for below in uses.reached(task) for kernel in registry.task(below).kernels}
    return tuple(
        one.name
        for one in registry.production()
        if _runs_here(one) and any(not _has(kernel, one, device) for kernel in called & set(one.of))
    )


def _has(kernel: str, one: ProductionClass, device: Device) -> bool:
    found = (kernels.registered[kernel].implementation(name) for name in one.by)
    return any(each is not None and each.not_here(device) is None for each in found)


def _runs_here(one: ProductionClass) -> bool:
    return not one.capability or _capability() in one.capability


def _capability() -> int:
    import torch

    return torch.cuda.get_device_capability()[0]
