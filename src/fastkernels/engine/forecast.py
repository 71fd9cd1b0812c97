"""How many blocks running rows will hold at once, if each grows until it is expected to end.

    most = others + max_i  sum_{j: left_j >= left_i} (own_j + left_i)        in blocks

own: positions whose blocks a row holds alone · left: positions that it will still get · others: blocks that
rows share. Rows end in the order of what is left of them; when row i ends, those with more left have grown as
much as it has, and the blocks of those with less are free.

A row that nothing can stop early ends at its limit. Of the others the share of their limits is learnt that
requests before them have used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastkernels.engine.cache import BlockGroup, Ints

Positions = NDArray[np.float64]

FIRST_SHARE = 0.5  # of max_tokens, before any request has ended
LEARNING_RATE = 1 / 64  # what one request that ends adds to the share


class Lengths:
    """What requests that could have been stopped have used of their max_tokens."""

    def __init__(self) -> None:
        self.share = FIRST_SHARE

    def learn(self, used: int, allowed: int) -> None:
        self.share += LEARNING_RATE * (used / allowed - self.share)

    def expected(self, left: Ints | int, is_certain: NDArray[np.bool_] | bool) -> Positions:
        """Of the positions that are left to the limits, those that will be reached."""
        return np.where(is_certain, left, left * self.share)


@dataclass(frozen=True, slots=True)
class Demand:
    """What rows hold and will hold in one cache group; B rows."""

    group: BlockGroup
    own_B: Positions
    left_B: Positions
    others: int

    def plus(self, own: float, left: float, others: int) -> Demand:
        """With one more row, and `others` more blocks that are not its own."""
        rows = np.append(self.own_B, own), np.append(self.left_B, left)
        return Demand(self.group, *rows, self.others + others)

    def fits(self, blocks: int) -> bool:
        """Whether at no time more than `blocks` are held."""
        # All at their ends at once is more than ever comes, and known without an order.
        return self._at_their_ends() <= blocks or self.most() <= blocks

    def most(self) -> float:
        """The most blocks that are held at once."""
        if self.group.window is not None:
            return self._at_their_ends()  # rows that outgrow it stay as large as they are
        order = np.argsort(-self.left_B, kind="stable")
        own_B, left_B = self.own_B[order], self.left_B[order]
        alive_B = np.arange(1, len(order) + 1)
        positions_B = np.cumsum(own_B) + alive_B * left_B
        # The last block of a row is half full on average.
        return self.others + float((positions_B / self.group.block_size + alive_B / 2).max(initial=0.0))

    def _at_their_ends(self) -> float:
        """If all were at their ends at once."""
        held_B = (self.own_B + self.left_B) / self.group.block_size + 0.5
        if self.group.window is not None:
            held_B = np.minimum(held_B, self.group.window_blocks)
        return self.others + float(held_B.sum())
