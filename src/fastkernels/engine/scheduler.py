"""Continuous batching without phases: a row needs `total - scheduled` tokens; chunks and decode rows mix.

    total      positions that exist on the device: prompt, output, and placeholders of samples in flight
    scheduled  positions whose forward pass has been launched
    limit      positions of the longest continuation; the last one is sampled but never computed

The host runs one step ahead: it plans step n while n-1 computes. A sampled id stays on the device, where step
n reads it; the host only counts a placeholder, and learns the id in `retire`. A row that turns out to have
ended takes part in one extra step, whose sample is dropped: its blocks can be handed out at once, because the
stream orders the reuse.

State is NumPy arrays over rows; Python touches single rows only on admission, preemption and completion.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from fastkernels.engine.cache import BlockCache, Ints
from fastkernels.engine.plan import Admission, Plan, Sampled
from fastkernels.engine.requests import Request

# Share of the blocks that admission leaves free, so that running rows can grow before one is preempted.
WATERMARK = 0.01


class Scheduler:
    def __init__(
        self,
        cache: BlockCache,
        max_rows: int,
        max_len: int,
        max_tokens: int,
        watch: Callable[[Request], str | None] | None = None,
    ) -> None:
        """max_rows: requests that run at once; max_len: positions of a row; max_tokens: tokens of a step.
        watch: looks at a watched request after each token and returns a finish reason, or None to go on."""
        self.cache, self.max_tokens, self.watch = cache, max_tokens, watch
        size = max_rows + 1  # row 0 is null: padding lives there
        self.total_R, self.scheduled_R, self.limit_R = (np.zeros(size, np.int64) for _ in range(3))
        self.known_R = np.zeros(size, np.int64)  # positions whose ids the host knows
        self.serial_R = np.full(size, -1, np.int64)  # whose row it is; -1 nobody's
        self.watched_R = np.zeros(size, bool)
        self.tokens_RL = np.zeros((size, max_len), np.int32)
        self.stops_RS = np.full((size, 1), -1, np.int64)
        self.occupants: list[Request | None] = [None] * size
        self.running = np.zeros(0, np.int64)  # rows, oldest admission first
        self.waiting: deque[Request] = deque()
        self.num_preemptions = 0
        self._free_rows = list(range(max_rows, 0, -1))
        self._away: dict[int, Request] = {}  # preempted with a sample in flight, by serial
        self._finished: list[Request] = []

    @property
    def is_idle(self) -> bool:
        return not len(self.running) and not self.waiting

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def fits(self, length: int) -> bool:
        """Whether a request that grows to `length` positions can be served by an otherwise empty engine."""
        return length <= self.tokens_RL.shape[1] and self.cache.fits_alone(max(length - 1, 1))

    def collect(self) -> list[Request]:
        """The requests that finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    # ---- planning

    def plan(self) -> Plan | None:
        """The next step, or None when nothing can be launched before another step retires."""
        rows, counts = self._grant()
        self.cache.slide(rows, self.scheduled_R[rows])
        preemptions = self.num_preemptions
        rows, counts = self._make_room(rows, counts)
        admitted: list[Admission] = []
        if self.waiting and self.num_preemptions == preemptions:
            admitted, new_rows, new_counts = self._admit(rows, counts)
            rows, counts = np.concatenate([rows, new_rows]), np.concatenate([counts, new_counts])
        return self._commit(rows, counts, admitted) if len(rows) else None

    def _wanted(self, rows: Ints) -> Ints:
        return np.minimum(self.total_R[rows], self.limit_R[rows] - 1) - self.scheduled_R[rows]

    def _grant(self) -> tuple[Ints, Ints]:
        """Share the token budget: rows that decode first, then prefill chunks, each oldest first."""
        wanted = self._wanted(self.running)
        decodes = wanted == 1
        order = np.concatenate([np.flatnonzero(decodes), np.flatnonzero(wanted > 1)])
        rows, wanted = self.running[order], wanted[order]
        before = np.cumsum(wanted) - wanted
        counts = np.minimum(wanted, self.max_tokens - before)
        granted = counts > 0
        return (rows, counts) if granted.all() else (rows[granted], counts[granted])

    def _make_room(self, rows: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """Preempt the youngest rows until the step's blocks are there; a last row takes a smaller chunk."""
        while len(rows):
            need = self.cache.need(rows, self.scheduled_R[rows] + counts)
            if all(n <= free for n, free in zip(need, self.cache.num_free)):
                break
            if len(self.running) == 1:
                row = int(rows[0])
                return rows, np.minimum(counts, self.cache.reach(row) - self.scheduled_R[row])
            victim = int(self.running[-1])
            self._preempt(victim)
            kept = rows != victim
            rows, counts = rows[kept], counts[kept]
        return rows, counts

    def _preempt(self, row: int) -> None:
        """Send a row back to the head of the queue; it is computed again from its known ids."""
        request = self._occupant(row)
        request.output = self._output(row, request)
        request.inflight = int(self.total_R[row] - self.known_R[row])
        if request.inflight:
            self._away[request.serial] = request
        self._vacate(row)
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def _admit(self, rows: Ints, counts: Ints) -> tuple[list[Admission], Ints, Ints]:
        """Give rows to waiting requests while budget and blocks for their *current* length are there."""
        left = self.max_tokens - int(counts.sum())
        groups = self.cache.groups
        free = [
            free - n
            for free, n in zip(self.cache.num_free, self.cache.need(rows, self.scheduled_R[rows] + counts))
        ]
        # Blocks promised to running rows in the middle of their prompts, beyond this step's.
        now = self.scheduled_R.copy()
        now[rows] += counts
        promised = [
            int(self._later(g, self.total_R[self.running], now[self.running]).sum())
            for g in range(len(groups))
        ]
        admitted, new_counts = [], []
        while self.waiting and left > 0 and self._free_rows and self._is_complete(self.waiting[0]):
            request = self.waiting[0]
            length = len(request.prompt) + len(request.output)
            count = min(length, left, *(f * g.block_size for f, g in zip(free, groups)))
            if count <= 0:
                break
            later = [
                int(self._later(g, np.array([length]), np.array([count]))[0]) for g in range(len(groups))
            ]
            taken = [group.blocks_for(count) for group in groups]
            room = (f - t - p - n for f, t, p, n in zip(free, taken, promised, later))
            enough = all(r >= math.ceil(WATERMARK * group.num_blocks) for r, group in zip(room, groups))
            if not enough and (len(self.running) or admitted):
                break
            self.waiting.popleft()
            admitted.append(self._enter(request))
            new_counts.append(count)
            left -= count
            free = [f - t for f, t in zip(free, taken)]
            promised = [p + n for p, n in zip(promised, later)]
        new_rows = np.array([a.row for a in admitted], np.int64)
        self.running = np.concatenate([self.running, new_rows])
        return admitted, new_rows, np.array(new_counts, np.int64)

    def _later(self, group: int, total: Ints, scheduled: Ints) -> Ints:
        """Blocks that rows of `total` positions need beyond `scheduled`; none that a window frees."""
        size = self.cache.groups[group].block_size
        if self.cache.groups[group].window is not None:
            return np.zeros_like(total)
        return np.maximum(-(-total // size) - -(-scheduled // size), 0)

    def _is_complete(self, request: Request) -> bool:
        """A request preempted with a sample in flight waits for that id: only the device knows it yet."""
        return request.inflight == 0

    def _enter(self, request: Request) -> Admission:
        row = self._free_rows.pop()
        known = self._known_length(request)
        self.total_R[row] = self.known_R[row] = known
        self.scheduled_R[row], self.limit_R[row] = 0, request.limit
        self.serial_R[row], self.occupants[row] = request.serial, request
        self.watched_R[row] = request.is_watched
        self.tokens_RL[row, : len(request.prompt)] = request.prompt
        self.tokens_RL[row, len(request.prompt) : known] = request.output
        if len(request.stop_ids) > self.stops_RS.shape[1]:
            wider = len(request.stop_ids) - self.stops_RS.shape[1]
            self.stops_RS = np.pad(self.stops_RS, ((0, 0), (0, wider)), constant_values=-1)
        self.stops_RS[row] = -1
        self.stops_RS[row, : len(request.stop_ids)] = request.stop_ids
        return Admission(row, request, request.known)

    def _known_length(self, request: Request) -> int:
        return len(request.prompt) + len(request.output)

    def _commit(self, rows: Ints, counts: Ints, admitted: list[Admission]) -> Plan:
        """Take the blocks, advance the rows, count placeholders, and put decode rows first."""
        starts = self.scheduled_R[rows]
        decodes = (counts == 1) & (starts > 0)
        num_decodes = int(decodes.sum())
        if not decodes[:num_decodes].all():
            order = np.argsort(~decodes, kind="stable")
            rows, counts, starts = rows[order], counts[order], starts[order]
        ends = starts + counts
        tables = self.cache.take(rows, ends)
        self.scheduled_R[rows] = ends
        total = self.total_R[rows]
        samples = (ends == total) & (total < self.limit_R[rows])
        self.total_R[rows] = total + samples
        return Plan(rows, starts, counts, samples, self.serial_R[rows], num_decodes, tables, admitted)

    # ---- completion

    def retire(self, plan: Plan, sampled: Sampled) -> None:
        """Take in the ids of a finished step; a row with another owner by now was preempted or ended."""
        rows, serials = plan.rows_B[plan.samples_B], plan.serials_B[plan.samples_B]
        ids = sampled.ids_S
        present = self.serial_R[rows] == serials
        for i in np.flatnonzero(~present):
            self._arrive_late(int(serials[i]), int(i), sampled)
        at = np.flatnonzero(present)
        rows, ids = rows[at], ids[at]
        known = self.known_R[rows]
        self.tokens_RL[rows, known] = ids
        self.known_R[rows] = known + 1
        stopped = (self.stops_RS[rows] == ids[:, None]).any(axis=1)
        full = known + 1 == self.limit_R[rows]
        ended = stopped | full
        if self.watched_R.any():
            for i in np.flatnonzero(self.watched_R[rows]):
                row, request = int(rows[i]), self._occupant(int(rows[i]))
                if request.sampling.stop_strings:
                    request.output = self._output(row, request)
                self._look(request, int(at[i]), sampled)
                ended[i] |= request.finish_reason is not None
        for i in np.flatnonzero(ended):
            row, request = int(rows[i]), self._occupant(int(rows[i]))
            request.output = self._output(row, request)
            self._finish(request, "stop" if stopped[i] else "length")
            self._vacate(row)

    def _arrive_late(self, serial: int, index: int, sampled: Sampled) -> None:
        """An id for a request that left its row: kept if it was preempted, dropped if it had ended."""
        request = self._away.get(serial)
        if request is None:
            return
        token = int(sampled.ids_S[index])
        request.output.append(token)
        request.inflight -= 1
        if not request.inflight:
            del self._away[serial]
        self._look(request, index, sampled)
        is_stop = token in request.stop_ids
        if is_stop or request.finish_reason or len(request.output) == request.max_tokens:
            self._away.pop(serial, None)
            self.waiting.remove(request)
            self._finish(request, "stop" if is_stop else "length")

    def _look(self, request: Request, index: int, sampled: Sampled) -> None:
        """Record log-probabilities of the newest token and let `watch` decide whether it ends the request."""
        count = request.sampling.logprobs
        if count is not None:
            assert sampled.top_ids_SK is not None
            assert sampled.top_logprobs_SK is not None
            assert sampled.logprobs_S is not None
            best = zip(
                sampled.top_ids_SK[index, :count].tolist(), sampled.top_logprobs_SK[index, :count].tolist()
            )
            request.logprobs.append(dict(best))
            request.logprobs[-1].setdefault(int(sampled.ids_S[index]), float(sampled.logprobs_S[index]))
        if self.watch is not None and request.sampling.stop_strings:
            request.finish_reason = self.watch(request)

    def _finish(self, request: Request, reason: str) -> None:
        request.finish_reason = request.finish_reason or reason
        self._finished.append(request)

    def _vacate(self, row: int) -> None:
        self.cache.release(row)
        self.running = self.running[self.running != row]
        self.serial_R[row], self.occupants[row], self.watched_R[row] = -1, None, False
        self._free_rows.append(row)

    def abandon(self) -> None:
        """Drop every request: after a step has failed nothing on the device can be trusted."""
        for row in self.running.tolist():
            self._vacate(row)
        self.waiting.clear()
        self._away.clear()
        self._finished.clear()

    def _occupant(self, row: int) -> Request:
        request = self.occupants[row]
        assert request is not None
        return request

    def _output(self, row: int, request: Request) -> list[int]:
        return self.tokens_RL[row, len(request.prompt) : self.known_R[row]].tolist()
