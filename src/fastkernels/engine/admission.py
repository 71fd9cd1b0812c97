"""Which waiting requests get a row: as many as budget and blocks allow for their *current* length.

The first in the queue goes first, or nobody does. Blocks that running rows still need for their prompts are
promised to them, and a few stay free, so that rows can grow before one is preempted.
"""

from __future__ import annotations

import math

import numpy as np

from fastkernels.engine.cache import Ints
from fastkernels.engine.ledger import Ledger
from fastkernels.engine.plan import Admission
from fastkernels.engine.prefix import Found
from fastkernels.engine.requests import Request

# Share of the blocks that admission leaves free.
WATERMARK = 0.01


class Admissions:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.cache, self.prefixes = ledger, ledger.cache, ledger.prefixes
        self._nothing = Found(0, [[] for _ in self.cache.groups], [0 for _ in self.cache.groups])

    def admit(self, rows: Ints, counts: Ints, budget: int) -> tuple[list[Admission], Ints]:
        """Beside the rows of a step, which compute `counts` tokens: who enters, and how many of `budget`
        tokens each computes. The new rows are among `running`; their blocks are not taken yet."""
        ledger, groups = self.ledger, self.cache.groups
        free, promised = self._room(rows, counts)
        admitted, new_counts = [], []
        while ledger.waiting and budget > 0 and ledger.free_rows and self._is_complete(ledger.waiting[0]):
            request = ledger.waiting[0]
            length = len(request.prompt) + len(request.output)
            found = self._nothing if self.prefixes is None else self.prefixes.find(request, length)
            start = found.tokens
            room = [f - revived for f, revived in zip(free, found.revived)]
            count = min(length - start, budget, *(r * g.block_size for r, g in zip(room, groups)))
            if count <= 0:
                break
            later = [
                int(self._later(g, np.array([length]), np.array([start + count]))[0])
                for g in range(len(groups))
            ]
            room = [r - g.blocks_for(start + count) + g.blocks_for(start) for r, g in zip(room, groups)]
            spare = (r - p - n for r, p, n in zip(room, promised, later))
            enough = all(s >= math.ceil(WATERMARK * group.num_blocks) for s, group in zip(spare, groups))
            if not enough and (len(ledger.running) or admitted):
                break
            ledger.waiting.popleft()
            admitted.append(self._enter(request, found))
            new_counts.append(count)
            budget -= count
            free = room
            promised = [p + n for p, n in zip(promised, later)]
        new_rows = np.array([a.row for a in admitted], np.int64)
        ledger.running = np.concatenate([ledger.running, new_rows])
        return admitted, np.array(new_counts, np.int64)

    def _room(self, rows: Ints, counts: Ints) -> tuple[list[int], list[int]]:
        """Of each group: blocks that the step leaves free, and those promised to rows in the middle of their
        prompts, beyond this step's."""
        ledger = self.ledger
        now = ledger.scheduled_R.copy()
        now[rows] += counts
        need = self.cache.need(rows, now[rows])
        running = ledger.running
        promised = [
            int(self._later(g, ledger.total_R[running], now[running]).sum())
            for g in range(len(self.cache.groups))
        ]
        return [free - n for free, n in zip(self.cache.num_free, need)], promised

    def _later(self, group: int, total: Ints, scheduled: Ints) -> Ints:
        """Blocks that rows of `total` positions need beyond `scheduled`; none that a window frees."""
        size = self.cache.groups[group].block_size
        if self.cache.groups[group].window is not None:
            return np.zeros_like(total)
        return np.maximum(-(-total // size) - -(-scheduled // size), 0)

    def _is_complete(self, request: Request) -> bool:
        """A request preempted with a sample in flight waits for that id: only the device knows it yet."""
        return request.inflight == 0

    def _enter(self, request: Request, found: Found) -> Admission:
        row = self.ledger.enter(request)
        if self.prefixes is not None:
            self.prefixes.attach(row, found)
            self.ledger.scheduled_R[row] = found.tokens
            self.prefixes.num_asked += len(request.prompt) + len(request.output)
            self.prefixes.num_found += found.tokens
        if request.num_cached is None:
            request.num_cached = min(found.tokens, len(request.prompt))
        return Admission(row, request, request.known)
