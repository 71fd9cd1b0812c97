"""Recurrences of several rows, token by token, all rows of a step at once.

    B rows · T tokens, packed by row

Longest rows first, so that those that have an i-th token are the first ones; tokens in the order in which the
rows come to them, so that the i-th ones of all rows lie together and no step has to gather them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Lockstep(NamedTuple):
    """order_B: of the rows. tokens_T: of the tokens. active: rows that have an i-th token, for each i."""

    order_B: Tensor
    tokens_T: Tensor
    active: list[int]


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
