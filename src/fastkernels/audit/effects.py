"""What a mistake costs where only mathematics is left, and why it may be none in this case.

An audit asks this of mistakes that the judge does not tell from right kernels by a margin: in float64 and
plain PyTorch, on the inputs that were judged.

    moved   how far it moves the right answer, the larger of the whole's and the worst row's relative error
    seen    the same without the rows that roundings move about as far (m of judge/conditioning.py)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.audit.subject import Change
from fastkernels.judge import bounds
from fastkernels.judge.bounds import Excuse
from fastkernels.judge.distance import distances

# Between what must fail and what must pass (admission.py). Twice the gate is what a timed iteration without
# an oracle may still let through (judge/compare.py), and an honest candidate uses up to half of it.
MARGIN = 4.0
# Roundings of the result's dtype: a mistake inside a part that moves the result of a whole module by less and
# is not told apart from right kernels, is lost among the roundings of its other parts. It is judged where the
# part is a task of its own. 16-bit results are computed wider; in float32 each operation of each part rounds,
# and the baseline of a tiny model is off by eight roundings itself.
ROUNDINGS, ROUNDINGS_FLOAT32 = 16, 64
# Roundings of the result's dtype: right kernels are off by one, so what moves the right answer by less than
# four does not stand out by a margin of four. An epsilon beside large numbers: other inputs can show it, and
# another case of the task has to. A sum of few parts in few bits is no mistake; nor is one that costs less
# than four times what right kernels cost on these inputs: they round in between, too. Of any mistake in a
# module that is true of its parts' roundings, and again another case has to show it.
HIDDEN = 4
ABOUT = 2.0  # times m, which is the largest of few draws; whatever the judge allows
NOTHING = 1e-12  # what float64 sums of another order differ by: the same mathematics

At = tuple[str, str]  # the inputs' distribution and the output's name


@dataclass(frozen=True, slots=True)
class Effect:
    moved: float
    seen: float


def effect(
    changed: Tensor, right: Tensor, dtype: torch.dtype, excuse: Excuse | None, error: float = math.inf
) -> Effect:
    """Of one output, as it is judged. `excuse`: None where nothing was measured. `error`: of the baseline
    with this mistake. It counts where exact arithmetic has no number and the baseline has: a norm without
    epsilon makes 0 / 0 of equal values, and 1 or -1 of what their mean loses."""
    if torch.equal(changed, right):
        return Effect(0.0, 0.0)
    if not changed.is_floating_point():
        return Effect(math.inf, math.inf)
    if not torch.equal(changed.isfinite(), right.isfinite()):
        return Effect(error, error)
    found = distances(changed, right)
    moved = max(found.errors(dtype)[:2])
    if excuse is None:
        return Effect(moved, moved)
    hidden_R = found.relative(dtype) <= ABOUT * excuse.moved_R
    if excuse.apart_R is not None:
        hidden_R |= excuse.apart_R
    return Effect(moved, max(found.errors(dtype, hidden_R)[:2]))


@dataclass(frozen=True)
class Lost:
    """Says of a case's mistakes why they are none. `off`: errors of right kernels; `draws`: of a sampler,
    None of other tasks."""

    dtype: torch.dtype
    has_parts: bool
    off: Mapping[At, float]
    draws: int | None = None

    def why(self, change: Change, effects: Mapping[At, Effect]) -> tuple[str, bool]:
        """And whether another case has to show the mistake; no reason where it is one."""
        moved, seen = (max(getattr(each, what) for each in effects.values()) for what in ("moved", "seen"))
        rounding, is_input = bounds.floor(self.dtype), change.kind == "input"
        most = rounding * (ROUNDINGS if self.dtype.itemsize < 4 else ROUNDINGS_FLOAT32)
        if moved <= NOTHING and change.unused_part:
            return f"forward never calls it: judged as {change.unused_part}", False
        if moved <= NOTHING:
            return "changes nothing in the right answer", is_input
        if self.draws is not None:
            return f"{self.draws} draws cannot tell", True
        moves = f"moves the right answer by {moved:.2g}"
        # Parts hand on what they rounded to the dtype: sums in it move the answer of the whole as that does.
        where = change.part_of or ("its parts" if self.has_parts and change.is_rounding else "")
        if where and seen <= most:
            return f"{moves} here: judged as {where}", is_input
        if self.has_parts and moved <= rounding:
            return f"{moves}, rounding alone by {rounding:.2g}", False
        if moved <= HIDDEN * rounding:
            return f"{moves} here, rounding alone by {rounding:.2g}", not change.is_rounding
        if seen <= NOTHING:
            return f"{moves} here, in rows that roundings move as far", True
        if (self.has_parts or change.is_rounding) and seen <= most and self._is_among(effects):
            why = f"{moves} here, right kernels are off by {max(self.off.values()):.2g}"
            return why, not change.is_rounding
        return "", False

    def _is_among(self, effects: Mapping[At, Effect]) -> bool:
        """Whether right kernels are off by more than a margin allows, on all inputs and in all outputs."""
        return all(found.seen <= MARGIN * self.off.get(at, 0.0) for at, found in effects.items())
