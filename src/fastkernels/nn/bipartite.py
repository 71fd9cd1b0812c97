"""Graphs of users and items, their normalised adjacency, and pairs to score.

Of U users and I items, item j is node U + j of n = U + I. An edge counts in both directions, and as often as
it is there:

    A[u, U + i] = A[U + i, u] = number of edges (u, i)
    Â[r, c] = A[r, c] / sqrt(d_r d_c),   d = A 1, at least 1
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.batching import Crossing, described, ids_of, largest_unsigned, require_values
from fastkernels.nn.program import Place

# Of the logarithms of popularities. As of ratings of films: a mean user has rated a hundred of four thousand
# items, some have rated a thousand, and some items nearly half of all users.
USER_SPREAD, ITEM_SPREAD = 1.0, 1.3
MOST_PAIRS = 1 << 20  # of a request


@lru_cache
def random_edges(
    num_users: int, num_items: int, num_edges: int, num_duplicates: int, num_isolated: int, seed: int
) -> np.ndarray:
    """int64 [2, E]: users and items. num_duplicates of the edges are there already; num_isolated nodes have
    none, and a rare node may have none by chance. ValueError where so many do not fit."""
    distinct = num_edges - num_duplicates
    if not (0 < distinct <= num_users * num_items // 2 and 0 <= num_duplicates <= distinct):
        raise ValueError(
            f"{num_edges} edges with {num_duplicates} duplicates: distinct ones are at least as many as "
            f"duplicates, and at most half of {num_users} x {num_items}"
        )
    generator = np.random.default_rng(seed)
    spread_N = np.repeat([USER_SPREAD, ITEM_SPREAD], [num_users, num_items])
    weight_N = np.exp(spread_N * generator.standard_normal(num_users + num_items))
    weight_N[generator.choice(len(weight_N), num_isolated, replace=False)] = 0
    shares = [part / part.sum() for part in np.split(weight_N, [num_users])]
    known = np.empty(0, dtype=np.int64)
    while len(known) < distinct:
        users, items = (generator.choice(len(share), num_edges, p=share) for share in shares)
        known = np.sort(np.concatenate((known, users * num_items + items)))
        known = known[np.diff(known, prepend=-1) > 0]  # np.unique hashes, which takes ten times as long
    chosen = generator.permutation(known)[:distinct]
    again = generator.choice(chosen, num_duplicates, replace=False)
    return np.stack(np.divmod(np.concatenate((chosen, again)), num_items))


def normalised(edge_index: Any, num_users: int, num_items: int) -> tuple[Tensor, Tensor, Tensor]:
    """Â in compressed rows, on the host: starts int32 [n + 1], columns int32 [entries], rising in each row,
    values float32. edge_index: users and items of edges, [2, E]. ValueError for what is not that, and for an
    edge with a node that is not there."""
    edges_2E = np.array(edge_index)
    if edges_2E.ndim != 2 or len(edges_2E) != 2 or edges_2E.dtype.kind != "i":
        raise ValueError("must be two lists of integers, of as many users as items")
    for name, nodes_E, count in zip(("user", "item"), edges_2E, (num_users, num_items), strict=True):
        wrong = np.flatnonzero((nodes_E < 0) | (nodes_E >= count))
        if len(wrong):
            edge = int(wrong[0])
            raise ValueError(f"edge {edge} has {name} {nodes_E[edge]}: there are {name}s 0 to {count - 1}")
    nodes = num_users + num_items
    users_E, items_E = edges_2E[0], num_users + edges_2E[1]
    entries = np.concatenate((users_E * nodes + items_E, items_E * nodes + users_E))
    places, times = np.unique(entries, return_counts=True)
    row, column = np.divmod(places, nodes)
    degree_N = np.maximum(np.bincount(row, weights=times, minlength=nodes), 1)
    values = times / np.sqrt(degree_N[row] * degree_N[column])
    starts_N1 = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=nodes))))
    return (
        torch.from_numpy(starts_N1.astype(np.int32)),
        torch.from_numpy(column.astype(np.int32)),
        torch.from_numpy(values.astype(np.float32)),
    )


class Pairs:
    """Requests of equally many pairs of a user and an item: nodes int32 [2, C, P]."""

    def __init__(self, num_users: int, num_items: int, place: Place) -> None:
        self.num_users, self.num_items, self.device = num_users, num_items, place.device

    def read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Users and items [P]; a RequestError names what is wrong with a request, and where."""
        users_P = self._ids("users", args[0], self.num_users)
        items_P = self._ids("items", args[1], self.num_items)
        if len(users_P) != len(items_P):
            raise RequestError(f"{len(users_P)} users and {len(items_P)} items are no pairs")
        return users_P, items_P

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """The number of pairs."""
        return len(args[0])

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        crossing = Crossing(self.device, ((2, len(calls), len(calls[0][0])), torch.int32))
        (nodes_2CP,) = crossing.arrays()
        for place, (users, items) in enumerate(calls):
            nodes_2CP[0, place] = users
            np.add(items, self.num_users, nodes_2CP[1, place], casting="unsafe")
        return [crossing]

    def _ids(self, name: str, ids: Any, count: int) -> np.ndarray:
        if isinstance(ids, Tensor):
            require_values(name, ids)
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1:
            raise RequestError(f"{name} must be int64 or int32 [pairs], not {described(ids)}")
        if not 1 <= ids.numel() <= MOST_PAIRS:
            raise RequestError(f"a request of {ids.numel()} pairs: they are 1 to {MOST_PAIRS}. Split it")
        if largest_unsigned(ids_P := ids_of(ids)) >= count:
            place = int(np.flatnonzero((ids_P < 0) | (ids_P >= count))[0])
            raise RequestError(f"{name}[{place}] is {ids_P[place]}: there are {name} 0 to {count - 1}")
        return ids_P
