"""Mistakes of precision inside a kernel: one step narrower than the contract, sums in too few bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastkernels.audit.precision import HalfSquares, narrow_sums, narrower
from fastkernels.audit.subject import Change, NotApplicable, Subject


def mutants(subject: Subject) -> list[Change | NotApplicable]:
    return [_narrower(subject.dtype), _narrow_sums(subject.dtype), _half_squares(subject)]


def _narrower(dtype: torch.dtype) -> Change:
    return _rounding("arithmetic one step narrower", lambda: narrower(dtype))


def _narrow_sums(dtype: torch.dtype) -> Change | NotApplicable:
    name = "sums in the dtype of the result"
    if dtype.itemsize > 2:
        return NotApplicable("mutant", name, f"{dtype} adds up in {dtype}".replace("torch.", ""))
    return _rounding(name, lambda: narrow_sums(dtype))


def _half_squares(subject: Subject) -> Change | NotApplicable:
    name = "squares in float16"
    if subject.dtype != torch.float16:
        return NotApplicable(
            "mutant", name, f"squares of {subject.dtype} hardly overflow".replace("torch.", "")
        )
    if subject.entry.has_parts:
        return NotApplicable("mutant", name, "values between its parts are small")
    return _rounding(name, HalfSquares)


def _rounding(name: str, mode: Callable[[], TorchDispatchMode]) -> Change:
    """The right mathematics, as the operators of plain PyTorch do it in this mode."""
    return Change("mutant", name, around=lambda module: mode(), implementation="reference", is_rounding=True)
