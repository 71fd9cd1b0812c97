"""Mistakes in what is read: stale, skipped, swapped, or one off.

stale       a tensor of the call before: every input and parameter must change some output
skipped     an activation or bias as zeros, a gain or probability as ones
off by one  ids, positions, slots, lengths; a matrix without its last input feature, or without a tile of them
swapped     two arguments of one shape and dtype
packed      an argument that is a view in a model, as if its rows lay behind one another
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from itertools import combinations

import torch
from torch import Tensor

from fastkernels.audit.mutants import states
from fastkernels.audit.mutants.calls import Call, owner, part_with, unused_part
from fastkernels.audit.precision import PART
from fastkernels.audit.subject import Change, Draw, NotApplicable, Subject
from fastkernels.loader import ranks, views
from fastkernels.records import TensorSpec

# What hosts are told of the longest row. A mistake in a tensor must not be a call that the contract forbids:
# told of 4 queries a row at most and given 8 rows and 32 queries, a kernel need not read the starts.
_QUERY_BOUNDS = ("max_query_len",)
_KEY_BOUNDS = ("max_seq_len", "max_seqlen")

Tensors = Mapping[str, Tensor]


def mutants(subject: Subject, draw: Draw, calls: Mapping[str, Call]) -> list[Change | NotApplicable]:
    found: list[Change | NotApplicable] = []
    for name, spec in subject.changeable.items():
        if name in subject.states:
            found += states.mutants(subject, name)
            continue
        if ranks.place(name) and ranks.own_name(name).removeprefix("arg.") in subject.entry.private:
            found.append(NotApplicable("input", f"{name} of the call before", "a matter of its own rank"))
            continue
        parameter = name.removeprefix("param.") if name.startswith("param.") else None
        part_of = part_with(subject, parameter) if parameter else None
        unused = unused_part(subject, calls, parameter) if parameter else None
        found.append(_stale(name, draw, part_of, unused))
        if spec.view is not None and name.startswith("arg."):
            found.append(_misread(subject, name))
        if parameter:
            found += _parameter(name, spec, part_of)
        elif spec.draw == "integers":
            # One-to-one changes of a seed give other noise, which is as right.
            found.append(_skipped(name, 0))
        elif spec.draw == "ids":
            found += [_skipped(name, 0), _off_by_one(name, lambda x, high=spec.high: (x + 1) % int(high))]
        elif spec.draw == "uniform":
            found += [_skipped(name, 0), _skipped(name, 1)]
        elif spec.draw in states.ROWS:
            found.append(_next_rows(subject, name))
        elif spec.draw == "routing.order":
            found.append(_off_by_one(name, lambda x, slots=spec.shape[0]: (x + 1) % slots))
        elif spec.draw == "routing.starts":
            found.append(_moved_slot(name))
        elif spec.draw.startswith("step."):
            found += _layout(subject, draw, name, spec)
        elif spec.draw.startswith("clouds."):
            found.append(_in_cloud(name, spec.draw.removeprefix("clouds."), draw))
        elif name not in subject.mutable:
            found.append(_skipped(name, 0))
    return [*found, *_numbers(subject), *_swapped(subject)]


def _stale(name: str, draw: Draw, part_of: str | None, unused: str | None) -> Change | NotApplicable:
    what = f"{name} of the call before"
    if torch.equal(draw.inputs[name], draw.before[name]):
        return NotApplicable("input", what, "every call of the case has the same values")
    return Change(
        "input",
        what,
        tensors=lambda draw: {name: draw.before[name]},
        part_of=part_of,
        unused_part=unused,
        within=_within(name),
    )


def _skipped(name: str, value: float, part_of: str | None = None) -> Change:
    how = "skipped" if value == 0 else f"taken as {value:g}"
    return Change(
        "mutant",
        f"{name} {how}",
        tensors=lambda draw: {name: torch.full_like(draw.inputs[name], value)},
        part_of=part_of,
        within=_within(name),
    )


def _misread(subject: Subject, name: str) -> Change:
    """As a kernel that ignores strides: also what lies beside the argument."""
    return Change(
        "mutant",
        f"{name} read as if it were packed",
        tensors=lambda draw: {name: views.misread(subject.specs, draw.inputs, name)},
    )


def _off_by_one(name: str, move: Callable[[Tensor], Tensor]) -> Change:
    return Change("mutant", f"{name} off by one", tensors=lambda draw: {name: move(draw.inputs[name])})


def _parameter(name: str, spec: TensorSpec, part_of: str | None) -> list[Change | NotApplicable]:
    if len(spec.shape) == 1:
        return [_skipped(name, 0 if name.rpartition(".")[2] == "bias" else 1, part_of)]
    tile = _without(name, PART, part_of) if spec.shape[-1] > PART else None
    return [dataclasses.replace(_without(name, 1, part_of), larger=tile)]


def _without(name: str, features: int, part_of: str | None) -> Change:
    return Change(
        "mutant",
        f"{name} without its last {'feature' if features == 1 else f'{features} features'}",
        tensors=lambda draw: {name: _short(draw, name, features)},
        part_of=part_of,
        within=_within(name),
    )


def _within(name: str) -> str:
    """The part that alone is changed with a tensor: a parameter's own; any other is given to the module."""
    return owner(name.removeprefix("param.")) if name.startswith("param.") else ""


def _short(draw: Draw, name: str, features: int) -> Tensor:
    short = draw.inputs[name].clone()
    short[..., -features:] = 0
    return short


# ---------------------------------------------------------------- where tokens lie


def _layout(subject: Subject, draw: Draw, name: str, spec: TensorSpec) -> list[Change | NotApplicable]:
    field = spec.draw.removeprefix("step.")
    if field in ("positions", "positions_alone"):
        return [_off_by_one(name, lambda x: (x - 1).clamp(min=0))]
    if field == "slots":
        slots = _slots(subject)
        return [_off_by_one(name, lambda x: (x + 1) % slots)]
    if field == "seq_lens":
        return [_off_by_one(name, lambda x: x - 1), _stale_padding(subject, draw, name)]
    if field == "places":
        count = next(spec.shape[0] for key, spec in subject.specs.items() if key in subject.mutable)
        return [_off_by_one(name, lambda x: (x + 1) % count)]
    if field in ("query_starts", "key_starts"):
        return [_moved_start(subject, draw, name)]
    if field in ("block_tables", "grids"):
        return [_other_rows(name, spec)]
    raise ValueError(f"{name}: there is no mutant yet of what {spec.draw} draws; add one here")


def _next_rows(subject: Subject, name: str) -> Change:
    """States of the next row of the pool; the null row stays out."""
    last = states.pool_rows(subject) - 1
    return _off_by_one(name, lambda x: x % last + 1)


def _slots(subject: Subject) -> int:
    pool = next(spec for name, spec in subject.specs.items() if name in subject.caches)
    return pool.shape[0] * pool.shape[1]


def _stale_padding(subject: Subject, draw: Draw, name: str) -> Change | NotApplicable:
    """Rows one entry longer, where the table has room: the entry behind a row's end is read."""
    what = f"{name} one longer: stale padding"
    if not subject.caches:
        return NotApplicable("mutant", what, "no paged cache")
    pool = next(spec for key, spec in subject.specs.items() if key in subject.caches)
    table = next(spec for spec in subject.specs.values() if spec.draw == "step.block_tables")
    room = table.shape[1] * pool.shape[1]
    if bool((draw.inputs[name] >= room).all()):
        return NotApplicable("mutant", what, "every row fills its block table")
    return Change(
        "mutant",
        what,
        tensors=lambda draw: {name: (draw.inputs[name] + 1).clamp(max=room)},
        raised=_KEY_BOUNDS,
    )


def _moved_start(subject: Subject, draw: Draw, name: str) -> Change | NotApplicable:
    """The last query or key of a row goes to the row behind it, which may then be longer than any was, but
    not than a bias of the scores."""
    what = f"{name} off by one"
    lens_B = draw.inputs[name].diff()
    places = [spec.shape[-1] for spec in subject.specs.values() if spec.draw == "by_place"]
    has_room_B = lens_B[1:] < min(places, default=math.inf)
    movable = ((lens_B[:-1] > 1) & has_room_B).nonzero()
    if not len(movable):
        return NotApplicable("mutant", what, "no row with two of them has a row behind it that can grow")
    at = int(movable[0]) + 1

    def moved(draw: Draw) -> Tensors:
        starts = draw.inputs[name].clone()
        starts[at] -= 1
        return {name: starts}

    return Change("mutant", what, tensors=moved, raised=(*_QUERY_BOUNDS, *_KEY_BOUNDS))


def _in_cloud(name: str, field: str, draw: Draw) -> Change | NotApplicable:
    """What is still a table of a cloud: x for y, the next curve, the next tap, the next voxel, or one more
    voxel for a cluster."""
    if field == "offset":
        return NotApplicable("mutant", f"{name} off by one", "the host is told where clouds end, too")
    if field == "batch":
        return _skipped(name, 0)
    if field == "cluster":
        return _off_by_one(name, lambda x: (x + 1) % (x.max() + 1))
    if field == "idx_ptr":
        at = int((draw.inputs[name].diff()[:-1] > 1).int().argmax()) + 1
        return _off_by_one(name, lambda x: torch.cat((x[:at], x[at : at + 1] - 1, x[at + 1 :])))
    dim = 1 if field in ("grid_coord", "neighbors") else 0
    return _off_by_one(name, lambda x: x.roll(1, dim))


def _moved_slot(name: str) -> Change:
    """The last slot of the expert that has most, of all but the last one, goes to the expert behind it. Every
    slot still has an expert, as the contract asks."""

    def move(starts_E1: Tensor) -> Tensor:
        lens_E = starts_E1.diff()
        at = int(lens_E[:-1].argmax())
        moved_E1 = starts_E1.clone()
        moved_E1[at + 1] -= lens_E[at].clamp(max=1)
        return moved_E1

    return _off_by_one(name, move)


def _other_rows(name: str, spec: TensorSpec) -> Change | NotApplicable:
    """Every row has its neighbour's blocks, or grid; a single row its own in another order."""
    dim = 0 if spec.shape[0] > 1 else 1
    if spec.shape[dim] == 1:
        return NotApplicable("mutant", f"{name} off by one", "one row of one block")
    return _off_by_one(name, lambda x: x.roll(1, dim))


# ---------------------------------------------------------------- arguments as they stand


def _numbers(subject: Subject) -> list[NotApplicable]:
    """Arguments that are no tensors: bounds for the host, which change no result."""
    return [
        NotApplicable("input", f"arg.{name}", f"no tensor: {value!r} in every call")
        for name, value in subject.case.inputs.items()
        if not isinstance(value, TensorSpec)
    ]


def _swapped(subject: Subject) -> list[Change | NotApplicable]:
    arguments = [(name, spec) for name, spec in subject.specs.items() if name.startswith("arg.")]
    alike = [
        (one, other)
        for (one, a), (other, b) in combinations(arguments, 2)
        if (a.shape, a.dtype) == (b.shape, b.dtype) and subject.mutable.isdisjoint((one, other))
    ]
    if not alike:
        return [NotApplicable("mutant", "swapped arguments", "no two have one shape and dtype")]
    return [_swap(one, other, subject) for one, other in alike]


def _swap(one: str, other: str, subject: Subject) -> Change | NotApplicable:
    what = f"{one} and {other} swapped"
    draws = {subject.specs[name].draw for name in (one, other)}
    if draws == {"integers"}:
        return NotApplicable("mutant", what, "another noise, as right as this one")
    if len(draws) > 1:
        return NotApplicable("mutant", what, "values of one are not legal for the other")
    return Change("mutant", what, tensors=lambda d: {one: d.inputs[other], other: d.inputs[one]})
