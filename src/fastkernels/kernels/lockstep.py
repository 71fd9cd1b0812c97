"""Linear recurrences of several rows, token by token, all rows of a step at once.

    h_i = decay_i h_{i-1} + increment_i       element by element; B rows · T tokens, packed by row · S steps

Longest rows first, so that those that have an i-th token are the first ones; tokens in the order in which the
rows come to them, so that the i-th ones of all rows lie together and no step has to gather them. Whatever
does not wait for the state is computed of several steps at once: a step itself is one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

_PIECE = 1 << 24  # elements of the states of several steps


class Lockstep(NamedTuple):
    """order_B: of the rows. tokens_T: of the tokens. active: rows that have an i-th token, for each i."""

    order_B: Tensor
    tokens_T: Tensor
    active: list[int]


def in_lockstep(
    advance: Callable[..., Tensor],
    state_RX: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    given: tuple[Tensor, ...],
    like: Tensor,
) -> Tensor:
    """What `advance(state_BX, *given_SBX)` returns: [S, B, ...] of some steps, [T, ...] of all
    as `like`. It takes the i-th tokens of all rows that have one, out of each of `given` [T, ...], and
    changes their states in place; `state_RX` is written at `rows_B`. Zero where a token is nobody's."""
    order_B, tokens_T, active = lockstep(query_starts_B1)
    given, rows_B = tuple(x[tokens_T] for x in given), rows_B[order_B]
    state_BX, found, first = state_RX[rows_B], like.new_empty((len(tokens_T), *like.shape[1:])), 0
    for count, steps in _pieces(active, state_RX.shape[1:].numel()):
        at = slice(first, first + steps * count)
        some = advance(state_BX[:count], *(x[at].unflatten(0, (steps, count)) for x in given))
        found[at] = some.flatten(0, 1)
        first = at.stop
    state_RX[rows_B] = state_BX
    result = torch.zeros_like(like)
    result[tokens_T] = found
    return result


def accumulated(state_BX: Tensor, decay_SBX: Tensor, increment_SBX: Tensor) -> Tensor:
    """The states after each step, [S, B, ...], in place of the increments; `state_BX` becomes the last."""
    last_BX = state_BX
    for decay_BX, increment_BX in zip(decay_SBX.unbind(0), increment_SBX.unbind(0)):
        last_BX = increment_BX.addcmul_(decay_BX, last_BX)
    state_BX.copy_(last_BX)
    return increment_SBX


def _pieces(active: list[int], size: int) -> Iterator[tuple[int, int]]:
    """Rows, and steps in a row that all of them have; `size`: elements of a row's state."""
    for count, equal in groupby(active):
        left, most = len(list(equal)), max(1, _PIECE // (count * size))
        while left > 0:
            yield count, min(left, most)
            left -= most


def lockstep(query_starts_B1: Tensor) -> Lockstep:
    """Lengths are read on the host."""
    starts_B, lens_B = query_starts_B1[:-1].long() - query_starts_B1[0], query_starts_B1.diff().long()
    order_B = lens_B.argsort(descending=True, stable=True)
    starts_B, lens_B = starts_B[order_B], lens_B[order_B]
    rows, lens = len(lens_B), lens_B.tolist()
    row_T = torch.arange(rows, device=lens_B.device).repeat_interleave(lens_B, output_size=sum(lens))
    index_T = torch.arange(sum(lens), device=lens_B.device) - (lens_B.cumsum(0) - lens_B)[row_T]
    by_index_T = (index_T * rows + row_T).argsort()
    active, count = [], rows
    for i in range(max(lens, default=0)):
        while lens[count - 1] <= i:
            count -= 1
        active.append(count)
    return Lockstep(order_B, (starts_B[row_T] + index_T)[by_index_T], active)
