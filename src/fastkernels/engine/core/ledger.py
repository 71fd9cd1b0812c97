"""Where every request is: waiting, in a row, or preempted while its newest sample is still on its way.

    R rows (row 0 is null) · L positions of a row · S stop ids

    total      positions that exist on the device: prompt, output, and placeholders of samples in flight
    scheduled  positions whose forward pass has been launched
    known      positions whose ids the host knows
    limit      positions of the longest continuation; the last one is sampled but never computed
    found      positions that were in the prefix cache when the row was taken

State is NumPy arrays over rows; Python touches single rows only when a request enters or leaves one.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from fastkernels.engine.core.cache import BlockCache, Ints
from fastkernels.engine.core.prefix_cache import Prefixes
from fastkernels.engine.core.request import MOST_STOPS, Request

FIRST_SHARE = 0.5  # of max_tokens, before any request has ended
LEARNING_RATE = 1 / 64  # what one request that ends adds to the share


class Lengths:
    """How long outputs become: a row that nothing can stop early ends at its limit, others use the share of
    their max_tokens that requests before them have used."""

    def __init__(self) -> None:
        self.share = FIRST_SHARE

    def learn(self, used: int, allowed: int) -> None:
        self.share += LEARNING_RATE * (used / allowed - self.share)

    def expected(self, left: Ints | int, is_certain: NDArray[np.bool_] | bool) -> NDArray[np.float64]:
        """Of the positions that are left to the limits, those that will be reached."""
        return np.where(is_certain, left, left * self.share)


class Ledger:
    def __init__(
        self, cache: BlockCache, max_rows: int, max_len: int, prefixes: Prefixes | None = None
    ) -> None:
        """prefixes: names the blocks of rows that are given up."""
        self.cache, self.prefixes = cache, prefixes
        size = max_rows + 1  # row 0 is null: padding lives there
        self.total_R, self.scheduled_R, self.limit_R = (np.zeros(size, np.int64) for _ in range(3))
        self.known_R, self.found_R = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.serial_R = np.full(size, -1, np.int64)  # whose row it is; -1 nobody's
        self.watched_R = np.zeros(size, bool)
        self.scored_R = np.zeros(size, bool)  # log-probabilities of its prompt are wanted
        self.certain_R = np.zeros(size, bool)  # nothing ends it before its limit
        # Places up to the end of its media; what positions behind them are more than places.
        self.spliced_R, self.shift_R = (np.zeros(size, np.int64) for _ in range(2))
        self.tokens_RL = np.zeros((size, max_len), np.int32)
        self.stops_RS = np.full((size, MOST_STOPS), -1, np.int64)
        self.running = np.zeros(0, np.int64)  # rows, oldest admission first
        self.waiting: deque[Request] = deque()
        self.away: dict[int, Request] = {}  # waiting with a sample in flight, by serial
        self.free_rows = list(range(max_rows, 0, -1))
        self.num_preemptions = 0
        self.lengths = Lengths()
        self._occupants: list[Request | None] = [None] * size

    @property
    def is_idle(self) -> bool:
        return not len(self.running) and not self.waiting

    def occupant(self, row: int) -> Request:
        request = self._occupants[row]
        assert request is not None
        return request

    def output(self, row: int) -> list[int]:
        """What the host knows of the row's output."""
        return self.tokens_RL[row, len(self.occupant(row).prompt) : self.known_R[row]].tolist()

    def enter(self, request: Request) -> int:
        """Give a request a row, which is not among `running` yet; nothing of it is scheduled."""
        row = self.free_rows.pop()
        known = self._known_length(request)
        self.total_R[row] = self.known_R[row] = known
        self.scheduled_R[row], self.limit_R[row], self.found_R[row] = 0, request.limit, 0
        self.serial_R[row], self._occupants[row] = request.serial, request
        self.watched_R[row], self.certain_R[row] = request.is_watched, request.runs_to_its_limit
        self.scored_R[row] = request.prompt_logprobs is not None
        self.spliced_R[row] = 0 if request.splice is None else request.splice.end
        self.shift_R[row] = request.shift
        self.tokens_RL[row, : len(request.prompt)] = request.prompt
        self.tokens_RL[row, len(request.prompt) : known] = request.output
        self.stops_RS[row] = -1
        if len(request.stop_ids) <= MOST_STOPS:
            self.stops_RS[row, : len(request.stop_ids)] = list(request.stop_ids)
        return row

    def _known_length(self, request: Request) -> int:
        return len(request.prompt) + len(request.output)

    def leave(self, row: int) -> Request:
        """Take a row and its blocks back; its request keeps the output that the host knows."""
        request = self.occupant(row)
        request.output = self.output(row)
        if self.prefixes is not None:
            computed = int(min(self.known_R[row], self.scheduled_R[row]))
            self.prefixes.name(row, request, min(len(request.prompt) - 1, computed), computed)
        self.cache.release(row)
        self.running = self.running[self.running != row]
        self.serial_R[row], self._occupants[row], self.spliced_R[row] = -1, None, 0
        self.watched_R[row] = self.scored_R[row] = False
        self.free_rows.append(row)
        return request

    def preempt(self, row: int) -> None:
        """Send a row back to the head of the queue; it is computed again from its known ids."""
        inflight = int(self.total_R[row] - self.known_R[row])
        request = self.leave(row)
        request.inflight = inflight
        if inflight:
            self.away[request.serial] = request
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def abort(self, request: Request) -> None:
        """Take a request out wherever it is; what is in flight for it comes back to nobody."""
        if request.finish_reason is not None:
            return
        request.finish_reason = "abort"
        rows = np.flatnonzero(self.serial_R == request.serial)
        if len(rows):
            self.leave(int(rows[0]))
        else:
            self.withdraw(request)
        request.release()  # its blocks were named by what it held

    def withdraw(self, request: Request) -> None:
        """Take a request out of the queue."""
        self.waiting.remove(request)
        self.away.pop(request.serial, None)

    def abandon(self) -> None:
        """Drop every request: after a step has failed nothing on the device can be trusted."""
        for row in np.flatnonzero(self.serial_R >= 0).tolist():
            self.leave(row)
        self.waiting.clear()
        self.away.clear()
        if self.prefixes is not None:
            self.prefixes.forget()
