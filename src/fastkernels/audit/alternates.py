"""Right answers that others would give: what the judge must accept.

again                         the baseline's own choice once more
implementation NAME           every implementation of the kernels below this task that serves the case here
sums in another order         `reference`, its sums and products in two parts, from the other end
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from fastkernels import kernels, registry
from fastkernels.audit.precision import other_order
from fastkernels.audit.subject import RIGHT, Change, Draw, Outputs, Subject
from fastkernels.errors import KernelError
from fastkernels.registry import uses

AGAIN = "the baseline again"


@dataclass(frozen=True)
class Alternate:
    name: str
    outputs: Callable[[Subject, Draw], Outputs]


@dataclass(frozen=True, slots=True)
class Unavailable:
    """An implementation that cannot serve this case here."""

    name: str
    reason: str


def alternates(subject: Subject, draw: Draw) -> list[Alternate | Unavailable]:
    return [
        Alternate(AGAIN, lambda subject, draw: subject.run(draw, _right())),
        *(_implementation(subject, draw, name) for name in _names(subject)),
        Alternate("sums in another order", lambda subject, draw: subject.run(draw, _OTHER_ORDER)),
    ]


_OTHER_ORDER = dataclasses.replace(RIGHT, around=lambda module: other_order(), implementation="reference")


def _right(implementation: str | None = None) -> Change:
    """No change but the implementation."""
    return dataclasses.replace(RIGHT, implementation=implementation)


def _names(subject: Subject) -> list[str]:
    """Implementations of all kernels below the task; `reference` is first. Layers of one rank call no
    collectives."""
    tasks = map(registry.task, sorted(uses.reached(subject.entry.id)))
    is_alone = subject.case.ranks == 1
    used = [
        kernel
        for task in tasks
        if not (is_alone and any(case.ranks > 1 for case in task.extra_cases))
        for kernel in task.kernels
    ]
    return list(dict.fromkeys(name for kernel in used for name in kernels.registered[kernel].names))


def _implementation(subject: Subject, draw: Draw, name: str) -> Alternate | Unavailable:
    """Forced wherever a kernel of the case has it; the others keep the baseline's choice."""
    label = f"implementation {name}"
    try:
        subject.run(draw, _right(name))
    except KernelError as error:
        return Unavailable(label, str(error))
    return Alternate(label, lambda subject, draw: subject.run(draw, _right(name)))
