"""Implementations of a kernel, and the entries of a device's table: what a call asks before it runs."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.machinery import PathFinder
from types import SimpleNamespace
from typing import Any

import torch

from fastkernels.kernels import policy
from fastkernels.layout import install_line

# What implementations in Triton are called: its interpreter runs them on a CPU, too.
IN_TRITON = ("triton", "gemv", "depthwise", "tf32x3")

skipped: Counter[tuple[str, str, str]] = Counter()  # (kernel, implementation, reason) -> calls


def installed(package: str) -> bool:
    """Whether a package is here, or a module of one by its dotted name; nothing is imported for the answer.

    A folder without code of its own is no package: flash-attn-4 is `flash_attn.cute` in such a folder, and
    brings no `flash_attn`. Of `one or another` either counts.
    """
    if " or " in package:
        return any(map(installed, package.split(" or ")))
    top, *inner = package.split(".")
    spec, name = importlib.util.find_spec(top), top
    for part in inner:
        name = f"{name}.{part}"
        spec = spec and PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec is not None and spec.origin is not None


@dataclass(frozen=True)
class Implementation:
    """One way to compute a kernel.

    `source`: the function, or the name of a module that is imported on first use and has a function named
    like the kernel. `unsupported(*args) -> str | None` says why a function cannot serve these arguments; a
    module may define `unsupported(kernel, *args)`.
    """

    name: str
    source: str | Callable[..., Any]
    devices: tuple[str, ...] = ("cuda",)
    requires: tuple[str, ...] = ()
    extra: str | None = None
    unsupported: Callable[..., str | None] | None = None

    @cached_property
    def missing(self) -> str | None:
        """The first required package that is not installed, with its install line."""
        for package in self.requires:
            if not installed(package):
                line = f": {install_line(self.extra)}" if self.extra else ""
                return f"{package} is not installed{line}"
        return None

    def function(self, kernel: str) -> Callable[..., Any] | None:
        """What computes the kernel; None in a library that declines every call of it."""
        return self.source if callable(self.source) else getattr(self._module, kernel, None)

    def limits(self, kernel: str) -> Callable[..., str | None] | None:
        """Says why these arguments cannot be served, or None; no function where all can be."""
        if callable(self.source):
            return self.unsupported
        check = getattr(self._module, "unsupported", None)
        return partial(check, kernel) if check else None

    @cached_property
    def _module(self) -> Any:
        """That of `source`; where a library that it requires cannot be imported (it was built for another
        PyTorch), one that declines every call."""
        assert isinstance(self.source, str)
        try:
            return import_module(self.source)
        except (ImportError, OSError) as error:
            if not self.requires:
                raise
            reason = f"{self.requires[0]} cannot be imported: {' '.join(str(error).split())}"
            return SimpleNamespace(unsupported=lambda *_: reason)

    def not_here(self, device: str) -> str | None:
        """Why this implementation can serve no call at all on this kind of device, or None."""
        if device not in self.devices and not (self.name in IN_TRITON and policy.interpreting()):
            return f"needs {' or '.join(self.devices)}, not {device}"
        return self.missing

    def why_not(self, kernel: str, args: Sequence[Any], device: str) -> str | None:
        """Why this implementation cannot serve the call, or None."""
        if reason := self.not_here(device):
            return reason
        check = self.limits(kernel)
        return check(*args) if check else None


class Choice:
    """One entry of a device's table, resolved on first use: a library that nobody reaches is never imported.

    What holds for the whole process is kept (installed or not, the function, whether it has conditions at
    all); whether it can serve *these arguments* is asked anew for every call.
    """

    __slots__ = (
        "_check",
        "_function",
        "_implementation",
        "_kernel",
        "_reason",
        "_resolved",
        "dtype",
        "max_rows",
        "name",
    )

    def __init__(
        self,
        kernel: str,
        reference: Callable[..., Any],
        implementation: Implementation | None,
        entry: policy.Entry,
        device: str,
    ) -> None:
        self._kernel, self.name, self.max_rows = kernel, entry.use, entry.max_rows
        self.dtype = None if entry.dtype is None else getattr(torch, entry.dtype)
        self._implementation = implementation
        self._function: Callable[..., Any] | None = reference if entry.use == "reference" else None
        self._check: Callable[..., str | None] | None = None
        self._resolved = entry.use == "reference"
        self._reason: str | None = None
        if not self._resolved:
            self._reason = self._implementation.not_here(device) if self._implementation else "unknown"

    def function_for(self, args: Sequence[Any]) -> Callable[..., Any] | None:
        """What to call, or None where this implementation cannot serve the call; then `skipped` counts it."""
        if not self._resolved and self._reason is None:
            assert self._implementation is not None  # an unknown name has a reason
            self._check = self._implementation.limits(self._kernel)
            self._function = self._implementation.function(self._kernel)
            self._resolved = True
        reason = self._reason or (self._check(*args) if self._check else None)
        if reason is None:
            if self._function is None:
                raise AttributeError(f"{self.name} neither defines nor declines {self._kernel}")
            return self._function
        skipped[self._kernel, self.name, reason] += 1
        return None

    @property
    def unconditional(self) -> Callable[..., Any] | None:
        """The function, if it serves every call of every size on this device."""
        is_whole = self._resolved and self._check is None and self.max_rows is None and self.dtype is None
        return self._function if is_whole else None
