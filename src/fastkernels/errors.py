"""Exceptions: our failures and the user's mistakes. A candidate's failure is a value (judge/verdict.py),
never one of these.

FastKernelsError              exit 1
├── UsageError                exit 2   the request cannot be understood
│   ├── NotFoundError                  no such task, architecture, workload, ...
│   ├── FileFormatError                a file is corrupt: which, at which line or tensor
│   ├── WeightsError                   a checkpoint does not fit the model: tensors, expected shapes
│   └── RequestError                   a generation request that cannot be served (also a ValueError)
├── MachineError              exit 3   this machine cannot do it: no CUDA, not enough memory
│   └── MissingExtraError              an optional package is not installed: the install line
├── BaselineError             exit 3   the baseline itself failed: nothing can be judged against it
└── KernelError               exit 1   an implementation that was asked for cannot serve the call
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

_NEAR = 0.6  # how like a known name is to a mistyped one, of difflib's ratio


class FastKernelsError(Exception):
    """Base of all errors that `fk` prints without a traceback."""

    exit_code = 1


class UsageError(FastKernelsError):
    exit_code = 2


class NotFoundError(UsageError):
    """Nothing is registered under a name; carries the nearest names that are."""

    def __init__(self, kind: str, name: str, known: Iterable[str], listing: str) -> None:
        self.kind, self.name = kind, name
        known = list(dict.fromkeys(known))
        short = {k.rpartition("/")[2]: k for k in reversed(known)}
        near = difflib.get_close_matches(name.rpartition("/")[2], list(short), n=3, cutoff=_NEAR)
        self.suggestions = [short[match] for match in near]
        hint = f" Did you mean {' or '.join(self.suggestions)}?" if self.suggestions else ""
        super().__init__(f"No {kind} '{name}'.{hint} See: {listing}")


class FileFormatError(UsageError):
    """A data file cannot be read; says which file and where in it (`line 7`, `tensor model.norm.weight`)."""

    def __init__(self, path: Path | str, where: str, problem: str) -> None:
        self.path, self.where, self.problem = Path(path), where, problem
        super().__init__(f"{path}{f', {where}' if where else ''}: {problem}")


class WeightsError(UsageError):
    """A checkpoint lacks tensors, has extra ones, or has them in other shapes."""


class RequestError(UsageError, ValueError):
    """A request that cannot be served; the engine's other requests are unharmed."""


class MachineError(FastKernelsError):
    exit_code = 3


class MissingExtraError(MachineError):
    """An optional package is needed now and is not installed. `install`: as layout.install_line says it."""

    def __init__(self, package: str, install: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}. Install it: {install}")


class BaselineError(FastKernelsError):
    exit_code = 3


class KernelError(FastKernelsError):
    """`impl=...` names an implementation that does not exist or cannot serve this call."""
