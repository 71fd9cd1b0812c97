"""Semantics and implementation have separate names: a `Kernel` is one operation with several `Implementation`s.

    y = kernels.rms_norm(x, w, eps)                       the measured choice for this device
    y = kernels.rms_norm(x, w, eps, impl="reference")     plain PyTorch, in the dtype of its inputs
    with kernels.use("reference"): module(x)              a whole module as its own oracle

Choice, first that applies: `impl=` argument, `use()`, the device's table (registry/devices), the declared order.
An implementation that the table prefers but that cannot serve a call is passed over and counted in `skipped`;
one that was asked for by name raises KernelError with the reason. Under torch.compile a kernel is one opaque operator.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fastkernels.errors import KernelError
from fastkernels.kernels import policy

skipped: Counter[tuple[str, str, str]] = Counter()      # (kernel, implementation, reason) -> calls
registered: dict[str, Kernel] = {}
_forced: list[dict[str, str]] = []


@dataclass(frozen=True)
class Implementation:
    """One way to compute a kernel: `function` of a module beside the reference, loaded on first use.

    The module may define `unsupported(kernel: str, *args) -> str | None`: why it cannot serve these arguments.
    """

    name: str
    module: str
    devices: tuple[str, ...] = ("cuda",)
    requires: tuple[str, ...] = ()
    extra: str | None = None

    @cached_property
    def missing(self) -> str | None:
        """The first required package that is not installed, with its install line."""
        for package in self.requires:
            if importlib.util.find_spec(package) is None:
                line = f": pip install 'fastkernels[{self.extra}]'" if self.extra else ""
                return f"{package} is not installed{line}"
        return None

    @cached_property
    def loaded(self) -> ModuleType:
        return importlib.import_module(self.module)

    def why_not(self, kernel: str, args: Sequence[Any], device: str) -> str | None:
        """Why this implementation cannot serve the call, or None."""
        if device not in self.devices and not (self.name == "triton" and policy.interpreting()):
            return f"needs {' or '.join(self.devices)}, not {device}"
        if self.missing:
            return self.missing
        check = getattr(self.loaded, "unsupported", None)
        return check(kernel, *args) if check else None


@dataclass
class Kernel:
    """One operation. Arguments are positional and named by `schema`, a torch operator schema without the name."""

    name: str
    schema: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]                              # shapes and dtypes only: meta device and tracing
    implementations: tuple[Implementation, ...] = ()      # declared order: best guess first
    rows: Callable[..., int] | None = None                # size by which the device table may choose
    _by_name: dict[str, Implementation] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_name = {i.name: i for i in self.implementations}
        registered[self.name] = self
        torch.library.define(f"fastkernels::{self.name}", self.schema)
        torch.library.impl(f"fastkernels::{self.name}", "CompositeExplicitAutograd")(self.run)
        torch.library.register_fake(f"fastkernels::{self.name}")(self.fake)
        self._op = getattr(torch.ops.fastkernels, self.name)

    @property
    def names(self) -> list[str]:
        return ["reference", *self._by_name]

    def __call__(self, *args: Any, impl: str | None = None) -> Any:
        if torch.compiler.is_compiling():
            return self._op(*args)
        return self.run(*args, impl=impl)

    def run(self, *args: Any, impl: str | None = None) -> Any:
        device = _device(args)
        if device == "meta":
            return self.fake(*args)
        name = impl or self._forced_name()
        if name is None:
            name = self.choose(args, device)
        elif name != "reference":
            self._require(name, args, device)
        if name == "reference":
            return self.reference(*args)
        return getattr(self._by_name[name].loaded, self.name)(*args)

    def choose(self, args: Sequence[Any], device: str) -> str:
        """The implementation that the device's table (or the declared order) prefers and that can serve the call."""
        size = self.rows(*args) if self.rows else 0
        for name in policy.preferred(self.name, list(self._by_name), size, device):
            if name == "reference":
                return name
            reason = self._by_name[name].why_not(self.name, args, device) if name in self._by_name else "unknown"
            if reason is None:
                return name
            skipped[self.name, name, reason] += 1
        return "reference"

    def why_not(self, name: str, args: Sequence[Any]) -> str | None:
        """Why implementation `name` cannot serve these arguments, or None."""
        return None if name == "reference" else self._by_name[name].why_not(self.name, args, _device(args))

    def _require(self, name: str, args: Sequence[Any], device: str) -> None:
        if name not in self._by_name:
            raise KernelError(f"Kernel {self.name} has no implementation '{name}'; it has {', '.join(self.names)}")
        if reason := self._by_name[name].why_not(self.name, args, device):
            raise KernelError(f"Kernel {self.name}, implementation {name}: {reason}")

    def _forced_name(self) -> str | None:
        for forced in reversed(_forced):
            if name := forced.get(self.name, forced.get("*")):
                # A blanket choice reaches only kernels that have it; `reference` always exists.
                if name == "reference" or name in self._by_name or self.name in forced:
                    return name
        return None


def _device(args: Sequence[Any]) -> str:
    for arg in args:
        if isinstance(arg, Tensor):
            return arg.device.type
    raise TypeError("A kernel needs at least one tensor argument")


@contextmanager
def use(every: str | None = None, **named: str) -> Iterator[None]:
    """Force an implementation for all kernels that have it (`use("reference")`) or for some (`use(glu="triton")`)."""
    for kernel, name in named.items():
        if kernel not in registered:
            raise KernelError(f"No kernel '{kernel}'; there are {', '.join(sorted(registered))}")
        if name not in registered[kernel].names:
            raise KernelError(f"Kernel {kernel} has no implementation '{name}'; "
                              f"it has {', '.join(registered[kernel].names)}")
    _forced.append({**({"*": every} if every else {}), **named})
    try:
        yield
    finally:
        _forced.pop()
