"""Mistakes of precision inside a kernel: one step narrower than the contract, sums in too few bits."""

from __future__ import annotations

import torch

from fastkernels.audit.precision import narrow_sums, narrower
from fastkernels.audit.subject import Change, NotApplicable, Subject


def mutants(subject: Subject) -> list[Change | NotApplicable]:
    return [_narrower(subject.dtype), _narrow_sums(subject.dtype)]


def _narrower(dtype: torch.dtype) -> Change:
    return Change(
        "mutant",
        "arithmetic one step narrower",
        around=lambda module: narrower(dtype),
        implementation="reference",
        is_rounding=True,
    )


def _narrow_sums(dtype: torch.dtype) -> Change | NotApplicable:
    name = "sums in the dtype of the result"
    if dtype.itemsize > 2:
        return NotApplicable("mutant", name, f"{dtype} adds up in {dtype}".replace("torch.", ""))
    return Change(
        "mutant",
        name,
        around=lambda module: narrow_sums(dtype),
        implementation="reference",
        is_rounding=True,
    )
