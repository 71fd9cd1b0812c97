"""How inputs lie in memory: packed, or as a model hands them over, beside one another in one tensor.

    specs     arg.query and arg.key, whose views lie in one storage
    stored    storage.query in the place of both: what a worker gets, and what the judge reads afterwards
    laid      the values of both in it, packed or strided; everything beside them is NaN, or -1
    seen      arg.query and arg.key again, as views of it: the call's arguments

Both layouts take the same memory. Who reads beside an input gets a NaN. Who writes there has changed the
storage, which the judge compares as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.records import Case, TensorSpec

# Layout -> the links that have it. Neighbouring links of a chain alternate; calls that are not captured do.
Layouts = Mapping[bool, slice]
_ALTERNATING: Layouts = {False: slice(0, None, 2), True: slice(1, None, 2)}
_STORAGE, _ARGUMENT = "storage.", "arg."
_ALIGNMENT = 256  # bytes: of packed inputs, as torch's own allocators give them
_POISON = 0xFF  # in every byte


class _Place(NamedTuple):
    """Of an argument in its storage, in elements."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def are_in(specs: Mapping[str, TensorSpec]) -> bool:
    """Whether any of the arguments has a view."""
    return bool(_storages(specs))


def alternating(links: int) -> list[list[int]]:
    """The links of a chain that are packed, and those that are strided."""
    return [list(range(links))[part] for part in _ALTERNATING.values()]


def is_strided(link: int) -> bool:
    """Whether this link of a chain is."""
    return bool(link % 2)


def in_chain() -> Layouts:
    """Of a chain's links."""
    return _ALTERNATING


def of_all(strided: bool) -> Layouts:
    """One layout, of everything."""
    return {strided: slice(None)}


def arguments(case: Case) -> dict[str, TensorSpec]:
    """The case's tensor arguments, by their names in a trial."""
    return {f"{_ARGUMENT}{name}": spec for name, spec in case.inputs.items() if isinstance(spec, TensorSpec)}


def stored(specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """The same tensors with storages in the place of what lies in them."""
    storages = _storages(specs)
    within = {name for members in storages.values() for name in members}
    kept = {name: spec for name, spec in specs.items() if name not in within}
    return kept | {name: _storage(members) for name, members in storages.items()}


def laid(
    specs: Mapping[str, TensorSpec], values: Mapping[str, Tensor], layouts: Layouts
) -> dict[str, Tensor]:
    """Storages [n, size] with these values of their arguments, [n, *shape]."""
    found = {}
    for name, members in _storages(specs).items():
        spec, (first, *_) = _storage(members), members
        links, dtype = len(values[first]), getattr(torch, spec.dtype)
        size = spec.shape[0] * dtype.itemsize
        bytes_LS = torch.full((links, size), _POISON, dtype=torch.uint8, device=values[first].device)
        found[name] = bytes_LS.view(dtype)
        for strided, part in layouts.items():
            of_part = found[name][part]
            for place in _places(members, strided):
                _view(of_part, place, links=True).copy_(values[place.name][part])
    return found


def seen(specs: Mapping[str, TensorSpec], tensors: Mapping[str, Tensor], strided: bool) -> dict[str, Tensor]:
    """Tensors of one call, with views of the storages in their place."""
    storages = _storages(specs)
    kept = {name: tensor for name, tensor in tensors.items() if name not in storages}
    return kept | {
        place.name: _view(tensors[name], place)
        for name, members in storages.items()
        for place in _places(members, strided)
    }


def as_in_model(specs: Mapping[str, TensorSpec], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Packed tensors of one call, those that have views laid as the model lays them."""
    drawn = {member: tensors[member][None] for members in _storages(specs).values() for member in members}
    storages = {name: links[0] for name, links in laid(specs, drawn, of_all(strided=True)).items()}
    return seen(specs, {**tensors, **storages}, strided=True)


def misread(specs: Mapping[str, TensorSpec], tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """What a kernel reads of an argument with a view that it takes for packed: what lies behind its begin."""
    (storage,) = (key for key, members in _storages(specs).items() if name in members)
    members = _storages(specs)[storage]
    drawn = {member: tensors[member][None] for member in members}
    lies = laid(members, drawn, of_all(strided=True))[storage][0]
    packed, strided = (
        next(place for place in _places(members, is_strided) if place.name == name)
        for is_strided in (False, True)
    )
    return _view(lies, packed._replace(offset=strided.offset)).to(tensors[name].dtype)


def is_storage(name: str) -> bool:
    """Whether a tensor of a trial is one."""
    return name.startswith(_STORAGE)


def within(specs: Mapping[str, TensorSpec], storage: str) -> list[str]:
    """The arguments that lie in a storage."""
    return list(_storages(specs)[storage])


def beside(storage: Tensor) -> Tensor:
    """Of each element of a storage as it was laid, whether it is no argument's."""
    bytes_of = storage.contiguous().view(torch.uint8).unflatten(-1, (-1, storage.element_size()))
    return (bytes_of == _POISON).all(-1)


def somewhere(specs: Mapping[str, TensorSpec], storage: str, strided: bool, places: Random) -> int:
    """A byte of one of the arguments in a storage, any of them."""
    members = _storages(specs)[storage]
    place = places.choice(_places(members, strided))
    element = place.offset + sum(
        places.randrange(n) * stride for n, stride in zip(place.shape, place.strides)
    )
    return element * getattr(torch, members[place.name].dtype).itemsize


def values(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a trial without storages: those that mathematics knows."""
    return {name: tensor for name, tensor in tensors.items() if not is_storage(name)}


def _storages(specs: Mapping[str, TensorSpec]) -> dict[str, dict[str, TensorSpec]]:
    """By name, the arguments that lie in each."""
    found: dict[str, dict[str, TensorSpec]] = {}
    for name, spec in specs.items():
        if spec.view is not None and name.startswith(_ARGUMENT):
            found.setdefault(_STORAGE + spec.view.storage, {})[name] = spec
    return found


def _storage(members: Mapping[str, TensorSpec]) -> TensorSpec:
    """It, with room for both layouts."""
    first = next(iter(members.values()))
    assert first.view is not None
    last = _places(members, strided=False)[-1]
    return TensorSpec(shape=(max(first.view.size, last.offset + prod(last.shape)),), dtype=first.dtype)


def _places(members: Mapping[str, TensorSpec], strided: bool) -> list[_Place]:
    found, end = [], 0
    for name, spec in members.items():
        assert spec.view is not None
        if strided:
            found.append(_Place(name, spec.shape, spec.view.strides, spec.view.offset))
            continue
        packed = torch.empty(spec.shape, device="meta").stride()
        found.append(_Place(name, spec.shape, packed, end))
        line = _ALIGNMENT // getattr(torch, spec.dtype).itemsize
        end = -(-(end + prod(spec.shape)) // line) * line
    return found


def _view(storage: Tensor, place: _Place, links: bool = False) -> Tensor:
    """Of a storage [size], or of those of some links [n, size]."""
    first = len(storage.shape) - 1 if links else 0
    shape, strides = storage.shape[:first] + place.shape, storage.stride()[:first] + place.strides
    return storage.as_strided(shape, strides, storage.storage_offset() + place.offset)
