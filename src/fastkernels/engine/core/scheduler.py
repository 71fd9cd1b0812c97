"""Continuous batching without phases: a row needs `total - scheduled` tokens; chunks and decode rows mix.

The host runs one step ahead: it plans step n while n-1 computes. A sampled id stays on the device, where step
n reads it; the host only counts a placeholder, and learns the id when the step retires (arrivals.py). A row
that turns out to have ended takes part in one extra step, whose sample is dropped: its blocks can be handed
out at once, because the stream orders the reuse.
"""

from __future__ import annotations

import numpy as np

from fastkernels.engine.core.admission import Admissions
from fastkernels.engine.core.cache import BlockCache, Ints, TableDiff
from fastkernels.engine.core.ledger import Ledger
from fastkernels.engine.core.plan import Admission, Plan, Scored, Spliced
from fastkernels.engine.core.prefix_cache import Prefixes
from fastkernels.engine.core.request import Request


class Scheduler:
    def __init__(
        self,
        cache: BlockCache,
        max_rows: int,
        max_len: int,
        max_tokens: int,
        prefixes: Prefixes | None = None,
    ) -> None:
        """max_rows: requests that run at once; max_len: positions of a row; max_tokens: tokens of a step.
        prefixes: over the groups of `cache`; None computes every prompt from its start."""
        self.cache, self.max_tokens, self.prefixes = cache, max_tokens, prefixes
        self.ledger = Ledger(cache, max_rows, max_len, prefixes)
        self.admissions = Admissions(self.ledger)

    def add(self, request: Request) -> None:
        self.ledger.waiting.append(request)
        self.admissions.note_change()

    def abort(self, request: Request) -> None:
        """Take a request out wherever it is."""
        self.ledger.abort(request)
        self.admissions.note_change()

    def fits(self, length: int) -> bool:
        """Whether a request that grows to `length` positions can be served by an otherwise empty engine."""
        return length <= self.ledger.tokens_RL.shape[1] and self.cache.fits_alone(max(length - 1, 1))

    def plan(self) -> Plan | None:
        """The next step, or None when nothing can be launched before another step retires."""
        ledger = self.ledger
        rows, counts = self._grant()
        self.cache.slide(rows, ledger.scheduled_R[rows])
        preemptions = ledger.num_preemptions
        rows, counts = self._make_room(rows, counts)
        admitted: list[Admission] = []
        if ledger.waiting and ledger.free_rows and ledger.num_preemptions == preemptions:
            admitted, new_counts = self.admissions.admit(rows, counts, self.max_tokens - int(counts.sum()))
            rows = np.concatenate([rows, np.array([a.row for a in admitted], np.int64)])
            counts = np.concatenate([counts, new_counts])
        return self._commit(rows, counts, admitted) if len(rows) else None

    def _wanted(self, rows: Ints) -> Ints:
        ledger = self.ledger
        return np.minimum(ledger.total_R[rows], ledger.limit_R[rows] - 1) - ledger.scheduled_R[rows]

    def _grant(self) -> tuple[Ints, Ints]:
        """Share the token budget: rows that decode first, then prefill chunks, each oldest first."""
        running = self.ledger.running
        wanted = self._wanted(running)
        decodes = wanted == 1
        order = np.concatenate([np.flatnonzero(decodes), np.flatnonzero(wanted > 1)])
        rows, wanted = running[order], wanted[order]
        before = np.cumsum(wanted) - wanted
        counts = np.minimum(wanted, self.max_tokens - before)
        granted = counts > 0
        return (rows, counts) if granted.all() else (rows[granted], counts[granted])

    def _make_room(self, rows: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """Preempt the youngest rows until the step's blocks are there; a last row takes a smaller chunk."""
        ledger = self.ledger
        while len(rows):
            need = self.cache.need(rows, ledger.scheduled_R[rows] + counts)
            if all(n <= free for n, free in zip(need, self.cache.num_free)):
                break
            if len(ledger.running) == 1:
                row = int(rows[0])
                return rows, np.minimum(counts, self.cache.reach(row) - ledger.scheduled_R[row])
            victim = int(ledger.running[-1])
            ledger.preempt(victim)
            kept = rows != victim
            rows, counts = rows[kept], counts[kept]
        return rows, counts

    def _commit(self, rows: Ints, counts: Ints, admitted: list[Admission]) -> Plan:
        """Take the blocks, advance the rows, count placeholders, and put decode rows first."""
        ledger = self.ledger
        starts = ledger.scheduled_R[rows]
        decodes = (counts == 1) & (starts > 0)
        num_decodes = int(decodes.sum())
        if not decodes[:num_decodes].all():
            order = np.argsort(~decodes, kind="stable")
            rows, counts, starts = rows[order], counts[order], starts[order]
        ends = starts + counts
        if self.prefixes is None:
            tables = self.cache.take(rows, ends)
        else:
            # The device does not know the entries that admitted rows found.
            found = self.cache.held(np.array([a.row for a in admitted], np.int64))
            tables = [TableDiff.joined(*diffs) for diffs in zip(found, self.cache.take(rows, ends))]
            self._name_prefills(rows[num_decodes:], starts[num_decodes:], ends[num_decodes:])
        ledger.scheduled_R[rows] = ends
        total = ledger.total_R[rows]
        samples = (ends == total) & (total < ledger.limit_R[rows])
        ledger.total_R[rows] = total + samples
        return Plan(
            rows,
            starts,
            counts,
            samples,
            ledger.serial_R[rows],
            num_decodes,
            tables,
            admitted,
            self._scored(rows, starts, counts) if ledger.scored_R.any() else None,
            self._spliced(rows, starts, counts) if ledger.spliced_R.any() else None,
        )

    def _scored(self, rows: Ints, starts: Ints, counts: Ints) -> Scored | None:
        """The prompt tokens of these rows that the step can judge: each by the token ahead of it."""
        spans, places, ids = [], [], []
        for i in np.flatnonzero(self.ledger.scored_R[rows]).tolist():
            request, start = self.ledger.occupant(int(rows[i])), int(starts[i])
            judged = request.prompt[start + 1 : start + 1 + int(counts[i])]
            if judged:
                spans.append((request, start + 1, len(judged)))
                places.append(np.arange(len(judged)) + counts[:i].sum())
                ids.append(np.array(judged, np.int64))
        return Scored(spans, np.concatenate(places), np.concatenate(ids)) if spans else None

    def _spliced(self, rows: Ints, starts: Ints, counts: Ints) -> Spliced | None:
        """What media put into the tokens of these rows; None if all lie behind them."""
        ledger = self.ledger
        are_ahead = starts < ledger.spliced_R[rows]
        if not are_ahead.any():
            return None
        firsts, num_tokens = np.cumsum(counts) - counts, int(counts.sum())
        shifts_T = np.repeat(starts - firsts + ledger.shift_R[rows], counts)
        positions_3T = np.tile(np.arange(num_tokens) + shifts_T, (3, 1))
        index_T, runs, num_rows = np.full(num_tokens, -1), [], 0
        for row, start, count, first in zip(
            *(of[are_ahead].tolist() for of in (rows, starts, counts, firsts))
        ):
            splice, end = ledger.occupant(row).splice, start + count
            assert splice is not None
            positions_3T[:, first : first + count] = splice.positions(start, end)
            for place, rows_ND in splice.rows(start, end):
                begin, length = first + place - start, len(rows_ND)
                index_T[begin : begin + length] = np.arange(num_rows, num_rows + length)
                num_rows += length
                runs.append(rows_ND)
        return Spliced(positions_3T, index_T, runs)

    def _name_prefills(self, rows: Ints, starts: Ints, ends: Ints) -> None:
        assert self.prefixes is not None
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):
            self.prefixes.name(row, self.ledger.occupant(row), start, end)
