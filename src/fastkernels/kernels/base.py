"""Semantics and implementation have separate names: a `Kernel` is an operation, `Implementation`s compute it.

    y = kernels.rms_norm(x, w, eps)                       the measured choice for this device
    y = kernels.rms_norm(x, w, eps, impl="reference")     plain PyTorch, in the dtype of its inputs
    with kernels.use("reference"): module(x)              a whole module as its own oracle

Choice, first that applies: `impl=` argument, `use()`, the device's table (registry/devices), the kernel's own
order. An implementation that the table prefers but that cannot serve a call is passed over and counted in
`skipped`; one that was asked for by name raises KernelError with the reason. Under torch.compile a kernel is
one opaque operator, `torch.ops.fastkernels.<name>`, that makes the same choice when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastkernels.errors import KernelError
from fastkernels.kernels import policy
from fastkernels.kernels.choice import Choice, Implementation, skipped
from fastkernels.kernels.policy import Entry

__all__ = ["Implementation", "Kernel", "observe", "registered", "reload_policy", "skipped", "use"]

registered: dict[str, Kernel] = {}
_forced: list[dict[str, str]] = []
_observers: list[Callable[[str, Sequence[Any]], None]] = []


@dataclass
class Kernel:
    """One operation. Arguments are positional; `schema` is a torch operator schema without the name.

    The first argument is a tensor; its device decides. `fake` makes outputs of the right shape and dtype
    without computing. `rows` is the size by which an order of preference may choose. `cpu`: the order on a
    CPU, where it is not that of all that serve one. `work(tally, *args)`: what a call must do besides reading
    its arguments (work.py). `adds_rows`: it adds up the values of a row, or their squares, as they are (a
    norm). `other_way(size)`: of a kernel that rounds to whole numbers, a context in which its reference
    decides otherwise what roundings of this size could.
    """

    name: str
    schema: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]
    implementations: tuple[Implementation, ...] = ()  # declared order: best guess first
    rows: Callable[..., int] | None = None
    cpu: tuple[Entry, ...] | None = None
    work: Callable[..., None] | None = None
    adds_rows: bool = False
    other_way: Callable[[float], AbstractContextManager[None]] | None = None
    _by_name: dict[str, Implementation] = field(init=False, repr=False)
    _choices: dict[str, list[Choice]] = field(init=False, repr=False, default_factory=dict)
    _on_cpu: Callable[..., Any] | None = field(init=False, repr=False, default=None)
    _on_cuda: Callable[..., Any] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self._by_name = {i.name: i for i in self.implementations}
        registered[self.name] = self
        # The operator carries `impl` too, so that a compiled module keeps a choice made by name.
        arguments, _, results = self.schema.rpartition(") ->")
        torch.library.define(f"fastkernels::{self.name}", f"{arguments}, *, str? impl=None) ->{results}")
        torch.library.impl(f"fastkernels::{self.name}", "CompositeExplicitAutograd")(self.run)
        torch.library.register_fake(f"fastkernels::{self.name}")(self._fake)
        self._op = getattr(torch.ops.fastkernels, self.name)

    @property
    def names(self) -> list[str]:
        return ["reference", *self._by_name]

    def implementation(self, name: str) -> Implementation | None:
        """The implementation of this name; None for `reference` and for names that do not exist."""
        return self._by_name.get(name)

    def __call__(self, *args: Any, impl: str | None = None) -> Any:
        if torch.compiler.is_compiling():
            return self._op(*args, impl=impl)
        # The common path of an eager step, about 0.5 us: nothing forced, one choice for every call.
        if impl is None and not _forced:
            if args[0].is_cpu:
                if self._on_cpu is not None:
                    return self._on_cpu(*args)
            elif args[0].is_cuda and self._on_cuda is not None:
                return self._on_cuda(*args)
        return self.run(*args, impl=impl)

    def run(self, *args: Any, impl: str | None = None) -> Any:
        device = _device(args)
        if device == "meta":
            for observer in _observers:
                observer(self.name, args)
            return self.fake(*args)
        name = impl or self._forced_name()
        if name is None:
            return self._chosen(args, device)[1](*args)
        if name == "reference":
            return self.reference(*args)
        return self._required(name, args, device)(*args)

    def choose(self, args: Sequence[Any]) -> str:
        """The first implementation of the table, or of the kernel's own order, that can serve the call."""
        return self._chosen(args, _device(args))[0]

    def why_not(self, name: str, args: Sequence[Any]) -> str | None:
        """Why implementation `name` cannot serve these arguments, or None."""
        if name == "reference":
            return None
        if name not in self._by_name:
            return f"unknown; there are {', '.join(self.names)}"
        return self._by_name[name].why_not(self.name, args, _device(args))

    def forget_choices(self) -> None:
        """Read the device's table again on the next call."""
        self._choices.clear()
        self._on_cpu = self._on_cuda = None

    def _chosen(self, args: Sequence[Any], device: str) -> tuple[str, Callable[..., Any]]:
        choices = self._choices.get(device)
        if choices is None:
            entries = policy.preferred(self.name, self._order(device), device)
            choices = self._choices[device] = [
                Choice(self.name, self.reference, self.implementation(entry.use), entry, device)
                for entry in entries
            ]
        size: int | None = None
        for choice in choices:
            if choice.max_rows is not None and self.rows is not None:
                size = self.rows(*args) if size is None else size
                if size > choice.max_rows:
                    continue
            if choice.dtype is not None and choice.dtype != _first(args).dtype:
                continue
            function = choice.function_for(args)
            if function is not None:
                if choice is choices[0]:
                    self._keep(choice, device)
                return choice.name, function
        raise AssertionError("reference closes every list and serves every call")

    def _order(self, device: str) -> list[Entry]:
        if device == "cpu" and self.cpu is not None:
            return list(self.cpu)
        return [Entry(i.name) for i in self.implementations if device in i.devices]

    def _keep(self, first: Choice, device: str) -> None:
        if device == "cpu":
            self._on_cpu = first.unconditional
        elif device == "cuda":
            self._on_cuda = first.unconditional

    def _fake(self, *args: Any, impl: str | None = None) -> Any:
        return self.fake(*args)

    def _required(self, name: str, args: Sequence[Any], device: str) -> Callable[..., Any]:
        if name not in self._by_name:
            raise KernelError(
                f"Kernel {self.name} has no implementation '{name}'; it has {', '.join(self.names)}"
            )
        chosen = self._by_name[name]
        if reason := chosen.why_not(self.name, args, device):
            raise KernelError(f"Kernel {self.name}, implementation {name}: {reason}")
        function = chosen.function(self.name)
        assert function is not None, f"{name} neither defines nor declines {self.name}"
        return function

    def _forced_name(self) -> str | None:
        for forced in reversed(_forced):
            name = forced.get(self.name, forced.get("*"))
            # A blanket choice reaches only kernels that have it; `reference` always exists.
            if name and (name == "reference" or name in self._by_name or self.name in forced):
                return name
        return None


def _device(args: Sequence[Any]) -> str:
    return _first(args).device.type


def _first(args: Sequence[Any]) -> Tensor:
    for arg in args:
        if isinstance(arg, Tensor):
            return arg
    raise TypeError("A kernel needs at least one tensor argument")


def reload_policy() -> None:
    """Read the devices' tables again: for tools that have just written one, and for tests."""
    policy.table.cache_clear()
    for kernel in registered.values():
        kernel.forget_choices()


@contextmanager
def use(every: str | None = None, **named: str) -> Iterator[None]:
    """Force an implementation: `use("reference")` for all kernels having it, `use(glu="triton")` for some."""
    if every is not None and not any(every in kernel.names for kernel in registered.values()):
        raise KernelError(f"No kernel has an implementation '{every}'")
    for kernel, name in named.items():
        if kernel not in registered:
            raise KernelError(f"No kernel '{kernel}'; there are {', '.join(sorted(registered))}")
        if name not in registered[kernel].names:
            names = ", ".join(registered[kernel].names)
            raise KernelError(f"Kernel {kernel} has no implementation '{name}'; it has {names}")
    _forced.append({**({"*": every} if every else {}), **named})
    try:
        yield
    finally:
        _forced.pop()


def forced() -> tuple[dict[str, str], ...]:
    """What `use` forces now, for a process that computes the same."""
    return tuple(map(dict, _forced))


@contextmanager
def observe(observer: Callable[[str, Sequence[Any]], None]) -> Iterator[None]:
    """Call `observer(kernel name, arguments)` for every kernel that is called with meta tensors in the body.

    For counting what a module does without doing it (work.py). Calls on real devices are not
    observed.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
