"""Calls of a case in this process, made by one implementation of a kernel or by another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels.base import Kernel
from fastkernels.loader import views
from fastkernels.loader.inputs import draw_links, trial_specs
from fastkernels.loader.materialize import Call, bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure import chain, roofline
from fastkernels.measure.ceilings import ceilings
from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.room import in_short
from fastkernels.records import Case, Device, Untimed

# Fewer than the judge's 64: what is chosen may be 3 % from the best, a judged win is of 1 %.
MOST_LINKS = 16
_SEED = 20261128

Forced = Callable[[], AbstractContextManager[None]]  # what makes a kernel's implementation run in the body


def links(case: Case, overlay: Overlay, device: Device, plan: ChainPlan) -> list[Call]:
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


def chain_of(case: Case, overlay: Overlay, device: Device) -> ChainPlan:
    if device == "cpu":
        return ChainPlan()
    specs = trial_specs(case, build_module(overlay, case, "meta"))
    work = roofline.work(case, overlay)
    plan = chain.of_trial(specs, roofline.floor_s(work, ceilings("cuda")), work.read_bytes)
    return dataclasses.replace(plan, links=min(plan.links, MOST_LINKS))


def alone(call: Call) -> Callable[[], Any]:
    def run() -> Any:
        with call.ambient():
            return call.run()

    return run


def using(kernel: str, implementation: str) -> Forced:
    return partial(kernels.use, **{kernel: implementation})


def first_tensor(args: Sequence[Any]) -> Tensor:
    return next(arg for arg in args if isinstance(arg, Tensor))


@contextmanager
def noting(kernel: Kernel, note: Callable[[Sequence[Any]], None]) -> Iterator[None]:
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


def declined(call: Call, forced: Forced) -> str | None:
    """Why an implementation does not take a call, captured or not: it took one in another layout."""
    try:
        with forced(), call.ambient():
            call.run()
    except KernelError as error:
        return f"does not take the model's layout: {in_short(error)}"
    return None


def require_device(device: Device) -> None:
    """Raises where no later call can be made."""
    wait(device)


def wait(device: Device) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def not_timed(case: Case, kernel: str, implementation: str, why: str) -> Untimed:
    return Untimed(task=case.task, case=case.id, kernel=kernel, implementation=implementation, why=why)
