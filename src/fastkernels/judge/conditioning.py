"""How far the right answer itself moves when the inputs move by a rounding.

    m = max over a few draws of  ||o(x (1 + step xi)) - o(x)|| / ||o(x)||

Each draw moves the inputs as roundings do:

    of values   xi is uniform in [-1, 1] and a function of the value: equal values move together. Where all
                elements of a row are equal, roundings do not average out, and a softmax over such rows moves
                by several times what independent ones would give.
    of sums     single operations only; between several, values are rounded. Adding up a row rounds each
                partial sum, by half a step at most: as if all elements before it had moved. So xi is a random
                walk along the row.
    of equal    where a norm is in the task, alone or in a module: rows of equal values. Their sum is rounded
    sums        the same way each time until it has doubled, so the steps of the walk are equal so long, and
                half a step, because nothing averages out. A layer norm of equal values is nothing but that,
                and as long as they move together, nothing shows it.

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

What decides which values are taken (`decides` in registry/tasks.yaml) is compared, not computed with, and is
not moved: another choice of boxes is all wrong, so that any boxes would be right.

step is what the arithmetic rounds by, u of judge/bounds.py. Of values: u of the case's dtype for a module
that hands rounded intermediates on (level 2 and above), u of float32 for a single operation, also behind
another interface (`is_single`), which is computed in float32 and rounded once; never more than an input's
own, since nobody rounds a float32 timestep to the model's dtype. Of sums: eps of float32, in which everybody
adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fastkernels import kernels, registry
from fastkernels.judge.bounds import Excuse, floor
from fastkernels.judge.compare import Standard
from fastkernels.judge.distance import Distances
from fastkernels.judge.oracle import Oracle
from fastkernels.records import Case
from fastkernels.registry import uses

DRAWS = 3
_SUM_STEP = torch.finfo(torch.float32).eps
_PIECE = 1 << 24  # elements
_ODD = 0x1E3779B97F4A7C15  # a large odd number of no meaning

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
    movements = [(_of_values, step(case))]
    if not entry.has_parts:
        movements.append((_of_sums, _SUM_STEP))
    if _adds_rows(case) and any(bool(_equal_rows(x).any()) for x in inputs.values() if x.is_floating_point()):
        movements.append((_of_equal_sums, _SUM_STEP))
    moves = [measure(plain(inputs))]
    for draw in range(DRAWS):
        for xi, size in movements:
            moved = _Moved(inputs, decides, size, xi, seed + draw)
            moves.append(measure(oracle(moved)))
            # A single operation moves them by less than 16-bit inputs can say.
            if xi is _of_values and not moved.is_lost:
                rounded = moved.rounded
                moves.append(measure(plain(rounded), oracle(rounded) if is_short else None))
    return {name: [each[name] for each in moves] for name in moves[0]}


@dataclass(frozen=True)
class _Moved(Mapping[str, Tensor]):
    """Inputs, moved one by one as they are asked for: in float64, all of a model's parameters at a time would
    take as much memory as the oracle. What was asked for is in `rounded`, in its own dtype."""

    inputs: Outputs
    kept: Collection[str]
    step: float
    xi: Callable[[Tensor, int], Tensor]
    seed: int
    rounded: dict[str, Tensor] = field(default_factory=dict)

    @property
    def is_lost(self) -> bool:
        """Whether no dtype can say the movement. Of inputs that an oracle has run on."""
        return all(torch.equal(self.rounded[name], tensor) for name, tensor in self.inputs.items())

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.inputs[name]
        moved = tensor if name in self.kept else _moved(tensor, self.step, self.xi, self.seed)
        self.rounded[name] = moved.to(tensor.dtype)
        return moved

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)


def _moved(tensor: Tensor, step: float, xi: Callable[[Tensor, int], Tensor], seed: int) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.to(torch.float64)
    return xi(wide, seed).mul_(min(step, floor(tensor.dtype))).add_(1).mul_(wide)


def _of_values(values: Tensor, seed: int) -> Tensor:
    """Uniform in [-1, 1): the bits of a float64, stirred; piece by piece, as each is copied a few times."""
    found = torch.empty_like(values, memory_format=torch.contiguous_format)
    for piece, stirred in zip(values.reshape(-1).split(_PIECE), found.view(-1).split(_PIECE)):
        mixed = piece.view(torch.int64) + (2 * seed + 1) * _ODD % 2**63
        for shift in (32, 29):
            mixed = (mixed ^ (mixed >> shift)) * _ODD
        stirred.copy_(mixed).div_(2**63)
    return found


def _of_sums(values: Tensor, seed: int) -> Tensor:
    """A random walk from the end of each row, whose steps are uniform in [-1/2, 1/2)."""
    return _walk(_steps(values, seed))


def _of_equal_sums(values: Tensor, seed: int) -> Tensor:
    """The same in rows of equal values: steps of -1/2 or 1/2, another one where the sum has doubled."""
    if not values.dim():
        return torch.zeros_like(values)
    counts = torch.arange(1, values.shape[-1] + 1, device=values.device, dtype=torch.float64)
    doubled = 2 ** torch.frexp(counts).exponent.sub(1) - 1  # 0, 1, 1, 3, 3, 3, 3, 7, ...
    steps = _steps(values, seed)[..., doubled].sign() / 2
    return torch.where(_equal_rows(values), _walk(steps), 0)


def _steps(values: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(values.device).manual_seed(seed)
    return torch.empty_like(values).uniform_(-0.5, 0.5, generator=generator)


def _walk(steps: Tensor) -> Tensor:
    return steps.flip(-1).cumsum(-1).flip(-1) if steps.dim() else steps


def _equal_rows(values: Tensor) -> Tensor:
    """[..., 1]: whether all values of a row are equal. Zeros are not: no factor moves them."""
    if values.dim() and values.shape[-1] > 1:
        return (values == values[..., :1]).all(-1, keepdim=True) & (values[..., :1] != 0)
    return torch.zeros(1, dtype=torch.bool, device=values.device)
