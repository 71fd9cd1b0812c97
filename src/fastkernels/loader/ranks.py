"""The tensors of a case on a group of ranks, as one rank sees them: its own, and its peers'.

    arg.x           of the rank itself
    peer.P.arg.x    of the P-th rank behind it, counted round the group: P = 1 .. ranks - 1
    peer.rank       which rank it is itself, an integer; the first where nothing is said

A worker that is one rank has tensors of its own alone. Whoever computes the whole group in one process, for
the oracle or an audit, has its peers' as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")
_PEER = "peer."
_RANK = f"{_PEER}rank"


def with_peers(specs: Mapping[str, Value], ranks: int) -> dict[str, Value]:
    """Specs of one rank, and of its peers' arguments. Parameters are the same on all ranks."""
    arguments = {name: spec for name, spec in specs.items() if name.startswith("arg.")}
    peers = {f"{_PEER}{place}.{name}": spec for place in range(1, ranks) for name, spec in arguments.items()}
    return {**specs, **peers}


def own(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """What belongs to the rank itself."""
    return {name: value for name, value in tensors.items() if not name.startswith(_PEER)}


def by_rank(tensors: Mapping[str, Value]) -> list[dict[str, Value]]:
    """Of each rank, from the own one on round the group."""
    found: list[dict[str, Value]] = [own(tensors)]
    for name, value in tensors.items():
        if name.startswith(_PEER) and name != _RANK:
            place, _, theirs = name.removeprefix(_PEER).partition(".")
            found += [{} for _ in range(int(place) + 1 - len(found))]
            found[int(place)][theirs] = value
    return found


def own_rank(tensors: Mapping[str, Tensor]) -> int:
    """Which rank sees the tensors so."""
    return int(tensors[_RANK]) if _RANK in tensors else 0


def place(name: str) -> int:
    """How many ranks behind the own one the tensor belongs."""
    return int(name.removeprefix(_PEER).partition(".")[0]) if name.startswith(_PEER) else 0


def own_name(name: str) -> str:
    """What the tensor is called by the rank that it belongs to."""
    return name.removeprefix(f"{_PEER}{place(name)}.")


def seen_from(rank: int, ranks: int, tensors_R: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of all, [ranks, ...] or, where all have the same, [1, ...], as `rank` sees them."""
    mine = {name: value[rank if len(value) > 1 else 0] for name, value in tensors_R.items()}
    told = {_RANK: torch.tensor(rank)} if ranks > 1 else {}
    return {**mine, **told} | {
        f"{_PEER}{place}.{name}": value[(rank + place) % ranks]
        for place in range(1, ranks)
        for name, value in tensors_R.items()
        if name.startswith("arg.")
    }
