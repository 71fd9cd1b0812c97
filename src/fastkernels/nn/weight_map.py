"""From checkpoint names to parameters: the map that a model declares.

    WeightMap(
        names={"model.layers.*.mlp.down_proj.*": "layers.*.mlp.down_proj.linear.*"},
        packed={"layers.*.mlp.gate_up_proj.linear.*": {"model.layers.*.mlp.gate_proj.*": 14336,
                                                       "model.layers.*.mlp.up_proj.*": 14336}},
        ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
        split={"head.in_proj.*": {"head.q_proj.*": 64, "head.kv_proj.*": 128}},
    )

`*` stands for one part of a dotted name and keeps its value on both sides, `**` for several. A packed
parameter lists, first rows first, the tensors that it consists of with their numbers of rows; a stack of
matrices [E, N, K] counts as E N rows; rows that no checkpoint has because they are zero are called ZEROS. A
split checkpoint tensor lists likewise the parameters that its rows go to. `spellings` are other names for
whole parameters, packed or not: checkpoints that packed them already, or that call them otherwise; those that
are `transposed` hold the matrices of a stack with inputs as rows. `repeated` says of a tensor which other one
it equals where the model has one parameter for both: a checkpoint may hold either or both.
`prefixes` are beginnings of names and what some checkpoints write in their place. `vectors` are parameters
of one dimension, or of packed rows, that checkpoints store with more dimensions, all of length one but the
last, or as a shape with -1 says. `pieces` say of a parameter which rows of which tensors it consists of,
where a checkpoint has them in another order. `folding` makes the tensors of the model's parameters out of a
checkpoint's first: norms are folded (folding.py), weights made ternary (ternary_weights.py) or expanded from
eight bits (block_scales.py). Filters of convolutions lie channels last (filters.py). A model carries its map
as the attribute `weight_map`, by which weights.py loads it. Rows are counted as in the whole model: of a
tensor a rank's part of it (partition.py) reads its own places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from typing import Protocol

from torch import Tensor

from fastkernels.nn.filters import as_stored
from fastkernels.nn.misfits import Misfits

ZEROS = "zeros"  # in the place of a checkpoint tensor's name


class Folds(Protocol):
    def fold(self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        """The tensors that the map knows, of those of a checkpoint; what does not fit is added to misfits."""
        ...


@dataclass(frozen=True)
class WeightMap:
    """names, spellings: checkpoint tensor -> parameter; packed: parameter -> {checkpoint tensor: rows};
    split: checkpoint tensor -> {parameter: rows}; prefixes: how names begin -> how else they may; repeated:
    checkpoint tensor -> the one that it must equal where it has no parameter of its own; vectors: parameter
    -> dimensions of its checkpoint tensor, or its shape; pieces: parameter -> rows of checkpoint tensors, in
    its own order; transposed: of the names in spellings."""

    names: Mapping[str, str] = field(default_factory=dict)
    packed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    split: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    folding: Folds | None = None
    prefixes: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, str] = field(default_factory=dict)
    vectors: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    pieces: Mapping[str, Sequence[Source]] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()

    def under(self, theirs: str, ours: str = "") -> WeightMap:
        """The map of a part: `theirs` before all names of the checkpoint, `ours` before all parameters."""
        return WeightMap(
            {theirs + name: ours + to for name, to in self.names.items()},
            {
                ours + to: {name if name == ZEROS else theirs + name: rows for name, rows in parts.items()}
                for to, parts in self.packed.items()
            },
            tuple(theirs + name for name in self.ignored),
            {theirs + name: ours + to for name, to in self.spellings.items()},
            {
                theirs + name: {ours + to: rows for to, rows in parts.items()}
                for name, parts in self.split.items()
            },
            self.folding,
            {theirs + prefix: theirs + other for prefix, other in self.prefixes.items()},
            {theirs + name: theirs + first for name, first in self.repeated.items()},
            {ours + name: dims for name, dims in self.vectors.items()},
            {
                ours + to: [replace(piece, name=theirs + piece.name) for piece in pieces]
                for to, pieces in self.pieces.items()
            },
            tuple(theirs + name for name in self.transposed),
        )

    def __or__(self, other: WeightMap) -> WeightMap:
        """The map of a model of two parts, of which one may fold."""
        return WeightMap(
            {**self.names, **other.names},
            {**self.packed, **other.packed},
            (*self.ignored, *other.ignored),
            {**self.spellings, **other.spellings},
            {**self.split, **other.split},
            self.folding or other.folding,
            {**self.prefixes, **other.prefixes},
            {**self.repeated, **other.repeated},
            {**self.vectors, **other.vectors},
            {**self.pieces, **other.pieces},
            (*self.transposed, *other.transposed),
        )

    def spelled(self, name: str) -> Iterator[str]:
        """A checkpoint tensor's name as the map has it: itself, or with the beginning that the map knows."""
        yield name
        for prefix, other in self.prefixes.items():
            if name.startswith(other):
                yield prefix + name.removeprefix(other)

    def ignores(self, name: str) -> bool:
        return any(_match(pattern, name) is not None for pattern in self.ignored)

    def respelled(self, name: str) -> str | None:
        """The parameter that a checkpoint tensor fills whole under one of its other names."""
        for other, parameter in self.spellings.items():
            if (values := _match(other, name)) is not None:
                return _fill(parameter, values)
        return None

    def transposes(self, name: str) -> bool:
        """Whether the checkpoint tensor of this name has inputs as rows."""
        return any(_match(pattern, name) is not None for pattern in self.transposed)

    def stored(self, parameter: str, tensor: Tensor) -> Tensor:
        """The memory of a parameter with the dimensions of the checkpoint tensor that is all of it."""
        for pattern, dims in self.vectors.items():
            if _match(pattern, parameter) is not None:
                return tensor.view(dims if isinstance(dims, tuple) else (*[1] * (dims - 1), -1))
        return as_stored(tensor)

    def sources(self, parameter: str, rows: int) -> list[Source]:
        """Each checkpoint tensor in a parameter, first rows first; empty if the map lacks it."""
        for pattern, pieces in self.pieces.items():
            if (values := _match(pattern, parameter)) is not None:
                return [replace(piece, name=_fill(piece.name, values)) for piece in pieces]
        for pattern, parts in self.packed.items():
            if (values := _match(pattern, parameter)) is not None:
                return [
                    Source(name if name == ZEROS else _fill(name, values), part)
                    for name, part in parts.items()
                ]
        for name, parts in self.split.items():
            for i, (pattern, part) in enumerate(parts.items()):
                if (values := _match(pattern, parameter)) is not None:
                    return [Source(_fill(name, values), part, first=sum(islice(parts.values(), i)))]
        for name, pattern in self.names.items():
            if (values := _match(pattern, parameter)) is not None:
                return [Source(_fill(name, values), rows)]
        return []


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of a checkpoint tensor that go to one parameter."""

    name: str
    rows: int
    first: int = 0  # of the checkpoint tensor's rows


def _match(pattern: str, name: str) -> list[str] | None:
    """The values of the stars if `name` fits, else None."""
    if "*" not in pattern:
        return [] if pattern == name else None
    found = re.fullmatch(re.escape(pattern).replace(r"\*\*", "(.+)").replace(r"\*", r"([^.]+)"), name)
    return None if found is None else list(found.groups())


def _fill(pattern: str, values: list[str]) -> str:
    pieces = pattern.split("*")
    return "".join(chain.from_iterable(zip_longest(pieces, values, fillvalue="")))
