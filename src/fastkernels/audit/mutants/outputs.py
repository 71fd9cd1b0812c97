"""Mistakes in what is written: a part dropped, rows shifted, a wrong factor, too few bits.

What is dropped from a returned tensor is zero; in a mutated one it stays as it was before the call (stale).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastkernels.audit.precision import NARROWER, rounded
from fastkernels.audit.subject import Change, Draw, NotApplicable, Outputs, Subject

# Below every constant that is ever mistaken: heads of 72 features scaled as if padded to 80 are off by 1.054.
WRONG_SCALE = 1.05
TILE = 16  # features, at most: the smallest tile that a tensor core has


def mutants(subject: Subject, right: Outputs) -> list[Change | NotApplicable]:
    return [change for name, example in right.items() for change in _for_output(subject, name, example)]


def _for_output(subject: Subject, name: str, example: Tensor) -> list[Change | NotApplicable]:
    if name in subject.mutable:
        return [*_mutated(subject, name, example), *_valued(subject, name, example)]
    found: list[Change | NotApplicable] = [
        _changed("last row dropped", name, lambda draw, x: _without_last(x, 0, 1)),
    ]
    features = example.shape[-1] if example.ndim > 1 else 1
    if features > 1:
        tile = min(TILE, features // 2)
        found.append(_changed("last tile dropped", name, lambda draw, x: _without_last(x, -1, tile)))
    else:
        found.append(NotApplicable("mutant", f"last tile dropped, {name}", "a row has one element"))
    if example.shape[0] > 1:
        found.append(_changed("rows shifted by one", name, lambda draw, x: x.roll(1, 0)))
    else:
        found.append(NotApplicable("mutant", f"rows shifted by one, {name}", "there is one row"))
    return [*found, *_valued(subject, name, example)]


def _mutated(subject: Subject, name: str, example: Tensor) -> list[Change]:
    tile = min(TILE, max(1, example.shape[-1] // 2))
    # Of a module, one part writes it: of a state that thousands of channels share, a row is one of them.
    part_of = subject.part("the part that writes it")
    return [
        _changed("last row not written", name, lambda draw, x: _stale(draw, name, x, None), part_of),
        _changed("last tile not written", name, lambda draw, x: _stale(draw, name, x, tile), part_of),
    ]


def _valued(subject: Subject, name: str, example: Tensor) -> list[Change | NotApplicable]:
    scaled, narrowed = "wrong scale", "written with fewer bits"
    if not example.is_floating_point():
        return [NotApplicable("mutant", f"{what}, {name}", "integers") for what in (scaled, narrowed)]
    bits = NARROWER[subject.dtype]
    # Of a module of several parts the last one writes: where roundings of the others hide it, it is judged.
    part_of = subject.part("its last part")
    return [
        _changed(scaled, name, lambda draw, x: x * WRONG_SCALE),
        _changed(narrowed, name, lambda draw, x: rounded(x, bits), part_of),
    ]


def _changed(
    what: str, name: str, make: Callable[[Draw, Tensor], Tensor], part_of: str | None = None
) -> Change:
    def outputs(draw: Draw, right: Outputs) -> Outputs:
        return {name: make(draw, right[name])}

    return Change("mutant", f"{what}, {name}", outputs=outputs, part_of=part_of)


def _without_last(x: Tensor, dim: int, count: int) -> Tensor:
    spoiled = x.clone()
    spoiled.narrow(dim, x.shape[dim] - count, count).zero_()
    return spoiled


def _stale(draw: Draw, name: str, now: Tensor, tile: int | None) -> Tensor:
    """`now` with its last written row as before the call; `tile`: with the last features of every row so.

    A row is an index of all dimensions but the last.
    """
    # `now` may be in the dtype of another precision: what is written is rounded or widened to it.
    before, spoiled = draw.inputs[name].flatten(0, -2).to(now.dtype), now.clone()
    rows = spoiled.flatten(0, -2)
    if tile is not None:
        rows[:, -tile:] = before[:, -tile:]
        return spoiled
    written_R = (before != rows).any(1).nonzero().squeeze(1)
    rows[written_R[-1:]] = before[written_R[-1:]]
    return spoiled
