"""Which waiting requests get a row: as many as budget and blocks allow, by what running rows will hold.

The first in the queue goes first, or nobody does. A request that fits now enters only if all rows still fit
when they have grown to where they are expected to end (`Demand`): what is given up is computed again.

    most = others + max_i  sum_{j: left_j >= left_i} (own_j + left_i)        in blocks

own: positions whose blocks a row holds alone · left: positions that it will still get · others: blocks that
rows share. Rows end in the order of what is left of them; when row i ends, those with more left have grown as
much as it has, and the blocks of those with less are free.

A queue that was there when the engine had nothing else to do, does not fit, and runs equally long enters in
equal waves (`equal_share`):

    W = ceil(max(N / R, sum_i blocks_i / usable)),   rows = ceil(N / W)

N requests that wait · R rows · blocks_i that request i holds at its end · usable blocks of a cache group

Rows of equally long continuations end together. As many as fit would leave a last wave of few rows, whose
steps read the same weights for less: 794 rows and then 206 take longer than 500 twice. Where continuations
differ, or may end early, rows leave one by one and others enter: no share is better than what fits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastkernels.engine.core.cache import BlockGroup, Ints
from fastkernels.engine.core.ledger import Ledger, Lengths
from fastkernels.engine.core.plan import Admission
from fastkernels.engine.core.prefix_cache import Found
from fastkernels.engine.core.request import Request

Positions = NDArray[np.float64]


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


UNLIMITED = 1 << 30
# Of more waves the last one is a small part, and each would look through all that wait: what a request costs
# would grow with the queue.
MOST_WAVES = 16

Groups = Collection[tuple[BlockGroup, int]]


def equal_share(waiting: Sequence[Request], lengths: Lengths, max_rows: int, groups: Groups) -> int:
    """Rows of each wave, `UNLIMITED` where waves are no concern. groups: each with its usable blocks."""
    have_N, left_N = _lengths([waiting[0]])
    if len(waiting) * _waves(have_N, left_N, lengths, max_rows, groups) > MOST_WAVES:
        return UNLIMITED
    have_N, left_N = _lengths(waiting)
    if (left_N != left_N[0]).any() or not all(request.runs_to_its_limit for request in waiting):
        return UNLIMITED
    return -(-len(waiting) // math.ceil(_waves(have_N, left_N, lengths, max_rows, groups)))


def _lengths(requests: Sequence[Request]) -> tuple[Ints, Ints]:
    """Positions that requests have, and that are left to their limits."""
    have_N = np.array([len(request.prompt) + len(request.output) for request in requests])
    return have_N, np.array([request.limit for request in requests]) - have_N


def _waves(have_N: Ints, left_N: Ints, lengths: Lengths, max_rows: int, groups: Groups) -> float:
    """How many times rows and blocks they take in all, counted as admission counts."""
    grown_N = lengths.expected(left_N, True)
    waves = len(have_N) / max_rows
    for group, usable in groups:
        blocks = Demand(group, have_N.astype(np.float64), grown_N, 0).most()
        waves = max(waves, blocks / max(1, usable))
    return waves


# Share of the blocks that admission leaves free: rows end later than expected, too.
WATERMARK = 0.01


class Admissions:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.cache, self.prefixes = ledger, ledger.cache, ledger.prefixes
        self._nothing = Found(0, [[] for _ in self.cache.groups], [0 for _ in self.cache.groups])
        self._most_rows = UNLIMITED

    def note_change(self) -> None:
        """A request came or was given up: if others run, the queue is not what its waves were made for."""
        self._most_rows = UNLIMITED

    def admit(self, rows: Ints, counts: Ints, budget: int) -> tuple[list[Admission], Ints]:
        """Beside the rows of a step, which compute `counts` tokens: who enters, and how many of `budget`
        tokens each computes. The new rows are among `running`; their blocks are not taken yet."""
        ledger, groups = self.ledger, self.cache.groups
        need = self.cache.need(rows, ledger.scheduled_R[rows] + counts)
        free = [free - n for free, n in zip(self.cache.num_free, need)]
        demands = [self._demand(group) for group in groups]
        admitted, new_counts = [], []
        # With prefixes nobody knows how much of their blocks rows will have found.
        if not len(ledger.running) and self.prefixes is None:
            usable = [(group, self._usable(group.num_blocks)) for group in groups]
            self._most_rows = equal_share(ledger.waiting, ledger.lengths, len(ledger.free_rows), usable)
        most = min(len(ledger.free_rows), self._most_rows - len(ledger.running))
        while ledger.waiting and budget > 0 and len(admitted) < most and self._is_complete(ledger.waiting[0]):
            request = ledger.waiting[0]
            length = len(request.prompt) + len(request.output)
            found = self._find(request, length)
            start = found.tokens
            room = [f - revived for f, revived in zip(free, found.revived)]
            count = min(length - start, budget, *(r * g.block_size for r, g in zip(room, groups)))
            if count <= 0:
                break
            left = float(ledger.lengths.expected(request.limit - length, request.runs_to_its_limit))
            grown = [d.plus(length - start, left, revived) for d, revived in zip(demands, found.revived)]
            is_alone = not len(ledger.running) and not admitted
            if not is_alone and not all(d.fits(self._usable(d.group.num_blocks)) for d in grown):
                break
            ledger.waiting.popleft()
            admitted.append(self._enter(request, found))
            new_counts.append(count)
            budget -= count
            free = [r - g.blocks_for(start + count) + g.blocks_for(start) for r, g in zip(room, groups)]
            demands = grown
        new_rows = np.array([a.row for a in admitted], np.int64)
        ledger.running = np.concatenate([ledger.running, new_rows])
        return admitted, np.array(new_counts, np.int64)

    def _demand(self, group: BlockGroup) -> Demand:
        """Of the running rows, in one group; blocks that rows found in the prefix cache are nobody's own."""
        ledger, running = self.ledger, self.ledger.running
        total, found = ledger.total_R[running], ledger.found_R[running]
        left = ledger.lengths.expected(ledger.limit_R[running] - total, ledger.certain_R[running])
        alone = int((group.held_R[running] - found // group.block_size).sum())
        others = 0 if group.window else max(0, group.num_blocks - 1 - group.num_free - alone)
        return Demand(group, (total - found).astype(np.float64), left, others)

    def _find(self, request: Request, length: int) -> Found:
        """What of a request is in the prefix cache; log-probabilities of a prompt need all of it computed."""
        if self.prefixes is None or request.prompt_logprobs is not None:
            return self._nothing
        return self.prefixes.find(request, length)

    def _usable(self, blocks: int) -> int:
        return blocks - 1 - math.ceil(WATERMARK * blocks)  # block 0 is null

    def _is_complete(self, request: Request) -> bool:
        """A request preempted with a sample in flight waits for that id: only the device knows it yet."""
        return request.inflight == 0

    def _enter(self, request: Request, found: Found) -> Admission:
        ledger = self.ledger
        row = ledger.enter(request)
        if self.prefixes is not None:
            self.prefixes.attach(row, found)
            ledger.scheduled_R[row] = ledger.found_R[row] = found.tokens
            self.prefixes.num_asked += len(request.prompt) + len(request.output)
            self.prefixes.num_found += found.tokens
        if request.num_cached is None:
            request.num_cached = min(found.tokens, len(request.prompt))
        return Admission(row, request, request.known)
