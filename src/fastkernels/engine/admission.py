"""Which waiting requests get a row: as many as budget and blocks allow, by what running rows will hold.

The first in the queue goes first, or nobody does. A request that fits now enters only if all rows still fit
when they have grown to where they are expected to end (forecast.py): what is given up is computed again.
A queue that was there when the engine had nothing else to do enters in equal waves (waves.py).
"""

from __future__ import annotations

import math

import numpy as np

from fastkernels.engine.cache import BlockGroup, Ints
from fastkernels.engine.forecast import Demand
from fastkernels.engine.ledger import Ledger
from fastkernels.engine.plan import Admission
from fastkernels.engine.prefix import Found
from fastkernels.engine.requests import Request
from fastkernels.engine.waves import UNLIMITED, equal_share

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
