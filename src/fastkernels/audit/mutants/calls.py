"""What the parts of a module were given and what they returned, in one right run of a case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from fastkernels.audit.subject import Change, Draw, Subject
from fastkernels.nn.fusion import apart


class Call(NamedTuple):
    arguments: Sequence[Any]
    result: Any


def watched(subject: Subject, draw: Draw) -> dict[str, Call]:
    """The first call of every part by its name in the module; parts that were not called are left out."""
    calls: dict[str, Call] = {}

    @contextlib.contextmanager
    def watching(module: nn.Module) -> Iterator[None]:
        with apart(module), contextlib.ExitStack() as hooks:
            for name, part in module.named_modules():
                handle = part.register_forward_hook(_noting(calls, name))
                hooks.callback(handle.remove)
            yield

    subject.run(draw, Change("mutant", "watched", around=watching))
    return calls


def _noting(calls: dict[str, Call], name: str) -> Callable[..., None]:
    def hook(owner: nn.Module, arguments: Any, result: Any) -> None:
        calls.setdefault(name, Call(arguments, result))

    return hook


def task_of(subject: Subject, part: str) -> str | None:
    """The task whose class a part is; None for the module itself."""
    return subject.overlay.task(type(subject.module.get_submodule(part))) if part else None


def owner(parameter: str) -> str:
    """The innermost part that a parameter is in; "" where that is the module itself."""
    return next(reversed(_around(parameter)), "")


def part_with(subject: Subject, parameter: str) -> str | None:
    """The task of the innermost part that has a parameter; None where that is the module itself."""
    tasks = (task_of(subject, part) for part in reversed(_around(parameter)))
    return next((task for task in tasks if task), None)


def unused_part(subject: Subject, calls: Mapping[str, Call], parameter: str) -> str | None:
    """The task of the outermost part around a parameter that forward never calls; None if it is called."""
    parts = _around(parameter)
    if not parts or parts[-1] in calls:
        return None
    tasks = (task_of(subject, part) for part in parts if part not in calls)
    return next((task for task in tasks if task), None)


def _around(parameter: str) -> list[str]:
    """The parts that a parameter is in, the outermost first."""
    path = parameter.split(".")[:-1]
    return [".".join(path[: depth + 1]) for depth in range(len(path))]
