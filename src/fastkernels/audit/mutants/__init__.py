"""The baseline with one mistake, made from what a case offers: outputs, tensors, module, arithmetic.

No task has mutants written for it: a new task gets its own from its outputs, arguments, parameters, caches,
attributes and parts.
"""

from __future__ import annotations

from fastkernels.audit.mutants import arithmetic, module, outputs, tensors
from fastkernels.audit.mutants.calls import watched
from fastkernels.audit.subject import Change, Draw, NotApplicable, Subject

__all__ = ["mutants"]


def mutants(subject: Subject, draw: Draw) -> list[Change | NotApplicable]:
    """All of them. `draw` is any draw of the case: outputs are known by their looks only."""
    calls = watched(subject, draw)
    return [
        *outputs.mutants(subject, draw.right),
        *tensors.mutants(subject, draw, calls),
        *module.mutants(subject, calls),
        *arithmetic.mutants(subject),
    ]
