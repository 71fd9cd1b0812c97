"""How far the right answer itself moves when the inputs move by a rounding.

    m = max over a few draws of  ||o(x (1 + step xi)) - o(x)|| / ||o(x)||

Each draw moves the inputs as roundings do (movements.py): their values, since between operations values are
rounded; in single operations their partial sums, and where a norm is in the task, alone or in a module, the
sums of equal values.

One draw of inputs compares two numbers with luck in them: the candidate's error and the baseline's. In a
module of several operations (a softmax between two matrix products, a single row) a rounding is amplified by
what the inputs happen to be, and two correct kernels differ by more than k = 2 once in a few hundred draws. A
result that is exact for inputs one rounding away is not wrong, so where the error-ratio gate says no, the
candidate is held against k max(e(b), u, m) as well. It costs some oracle runs and is done only then.

m also holds the error of plain arithmetic, the reference in the case's own dtype: on these inputs, and on
those whose values moved, where it rounds otherwise. One run may be as lucky as the baseline: in gated linear
attention 3 of 300 right results were refused for that. In 16 bits it is held against the right answer of the
inputs that moved. In float32 against that of the inputs themselves: sums round as values do there, in another
order in another kernel, and how far the answer moves stands for these, too.

A kernel that rounds to whole numbers (`other_way` of kernels/base.py) may decide otherwise where a few
roundings decide: rarely, and then by a million roundings' worth. So rarely that no draw shows it: two right
models of three layers in float32 differed so in one of eight calls, up to 1e-2. In modules of float32 m is
also how far the answer moves where all such decisions are the other ones. In 16 bits each movement of values
makes many of them.

What decides which values are taken (`decides` in registry/tasks) is compared, not computed with, and is
not moved: another choice of boxes is all wrong, so that any boxes would be right.

step is what the arithmetic rounds by, u of judge/bounds.py. Of values: u of the case's dtype for a module
that hands rounded intermediates on (level 2 and above), u of float32 for a single operation, also behind
another interface (`is_single`), which is computed in float32 and rounded once; never more than an input's
own, since nobody rounds a float32 timestep to the model's dtype. Of sums: eps of float32, in which everybody
adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from fastkernels import kernels, registry
from fastkernels.judge.bounds import Excuse, floor
from fastkernels.judge.compare import Standard
from fastkernels.judge.distance import Distances
from fastkernels.judge.movements import Moved, equal_rows, of_equal_sums, of_sums, of_values
from fastkernels.judge.oracle import Oracle
from fastkernels.records import Case
from fastkernels.registry import uses

DRAWS = 3
ROUNDINGS = 8  # that add up on the way to a whole number
_SUM_STEP = torch.finfo(torch.float32).eps

Outputs = Mapping[str, Tensor]


class Measure(Protocol):
    """How far outputs are from the oracle's on the same inputs, or from `truth`, those of others."""

    def __call__(self, outputs: Outputs, truth: Outputs | None = None) -> dict[str, Distances]: ...


def step(case: Case) -> float:
    """The relative rounding of one operation inside this task."""
    has_parts = registry.task(case.task).has_parts
    return floor(getattr(torch, case.dtype) if has_parts else torch.float32)


def excuses(
    standard: Standard,
    oracle: Oracle,
    as_judged: Callable[[Outputs], Outputs],
    inputs: Outputs,
    case: Case,
    seed: int,
) -> dict[str, Excuse]:
    """What these inputs excuse, for `Standard.loosened`. `as_judged`: what is compared of outputs."""
    moves = conditioning(
        lambda moved: as_judged(oracle(moved)),
        lambda moved: as_judged(oracle.plain(moved)),
        standard.distances,
        inputs,
        case,
        seed,
    )
    return standard.excuses(moves)


def _adds_rows(case: Case) -> bool:
    tasks = map(registry.task, uses.reached(case.task))
    return any(kernels.registered[name].adds_rows for task in tasks for name in task.kernels)


def _decisions(case: Case) -> list[Callable[[float], AbstractContextManager[None]]]:
    """`other_way` of each kernel below the task that has it."""
    names = {name for task in map(registry.task, uses.reached(case.task)) for name in task.kernels}
    return [way for name in sorted(names) if (way := kernels.registered[name].other_way) is not None]


def conditioning(
    oracle: Callable[[Outputs], Outputs],
    plain: Callable[[Outputs], Outputs],
    measure: Measure,
    inputs: Outputs,
    case: Case,
    seed: int,
) -> dict[str, list[Distances]]:
    """How far every floating-point output moves, row by row: m is the largest. `plain`: the oracle's modules
    in the case's dtype."""
    entry, is_short = registry.task(case.task), getattr(torch, case.dtype).itemsize < 4
    decides = {f"arg.{name}" for name in entry.decides.get(case.variant, ())}
    movements = [(of_values, step(case))]
    if not entry.has_parts:
        movements.append((of_sums, _SUM_STEP))
    if _adds_rows(case) and any(bool(equal_rows(x).any()) for x in inputs.values() if x.is_floating_point()):
        movements.append((of_equal_sums, _SUM_STEP))
    moves = [measure(plain(inputs))]
    for draw in range(DRAWS):
        for movement, size in movements:
            moved = Moved(inputs, decides, size, movement, seed + draw)
            moves.append(measure(oracle(moved)))
            # A single operation moves them by less than 16-bit inputs can say.
            if movement is of_values and not moved.is_lost:
                rounded = moved.rounded
                moves.append(measure(plain(rounded), oracle(rounded) if is_short else None))
    if entry.has_parts and not is_short:
        for other_way in _decisions(case):
            with other_way(ROUNDINGS * step(case)):
                moves.append(measure(oracle(inputs)))
    return {name: [each[name] for each in moves] for name in moves[0]}
