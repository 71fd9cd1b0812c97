"""Sampled ids arrive one step late: what the host learns from them, and which requests end."""

from __future__ import annotations

import numpy as np

from fastkernels.engine.core.ledger import Ledger
from fastkernels.engine.core.plan import Plan, Sampled, Scored
from fastkernels.engine.core.request import Request


class Arrivals:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._finished: list[Request] = []
        self._grown: list[Request] = []

    def finished(self) -> list[Request]:
        """The requests that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def grown(self) -> list[Request]:
        """The requests with a reader that got a token since the last call."""
        grown, self._grown = self._grown, []
        return grown

    def retire(self, plan: Plan, sampled: Sampled) -> None:
        """Take in the ids of a finished step; a row with another owner by now was preempted or ended."""
        ledger = self.ledger
        if plan.scored is not None:
            self._score(plan.scored, sampled)
        rows, serials = plan.rows_B[plan.samples_B], plan.serials_B[plan.samples_B]
        ids = sampled.ids_S
        present = ledger.serial_R[rows] == serials
        for i in np.flatnonzero(~present):
            self._arrive_late(int(serials[i]), int(i), sampled)
        at = np.flatnonzero(present)
        rows, ids = rows[at], ids[at]
        known = ledger.known_R[rows]
        ledger.tokens_RL[rows, known] = ids
        ledger.known_R[rows] = known + 1
        stopped = (ledger.stops_RS[rows] == ids[:, None]).any(axis=1)
        ended = stopped | (known + 1 == ledger.limit_R[rows])
        if ledger.watched_R.any():
            for i in np.flatnonzero(ledger.watched_R[rows]):
                request = ledger.occupant(int(rows[i]))
                request.output.append(int(ids[i]))
                stopped[i] = int(ids[i]) in request.stop_ids
                ended[i] |= stopped[i] | self._look(request, int(at[i]), sampled, bool(stopped[i]))
        for i in np.flatnonzero(ended):
            request = ledger.leave(int(rows[i]))
            self._finish(request, int(ids[i]) if stopped[i] else None)

    def forget(self) -> None:
        self._finished.clear()
        self._grown.clear()

    def _arrive_late(self, serial: int, index: int, sampled: Sampled) -> None:
        """An id for a request that left its row: kept if it was preempted, dropped if it had ended."""
        request = self.ledger.away.get(serial)
        if request is None:
            return
        token = int(sampled.ids_S[index])
        request.output.append(token)
        request.inflight -= 1
        if not request.inflight:
            del self.ledger.away[serial]
        is_stop = token in request.stop_ids
        has_stopped = self._look(request, index, sampled, is_stop)
        if is_stop or has_stopped or len(request.output) == request.max_tokens:
            self.ledger.withdraw(request)
            self._finish(request, token if is_stop else None)

    def _score(self, scored: Scored, sampled: Sampled) -> None:
        """Record the log-probabilities of prompt tokens, once more where a prompt was computed again."""
        assert sampled.scored is not None
        index = 0
        for request, position, length in scored.spans:
            assert request.prompt_logprobs is not None
            for at in range(position, position + length):
                count = request.sampling.prompt_logprobs or 0
                request.prompt_logprobs[at] = sampled.scored.at(index, request.prompt[at], count)
                index += 1

    def _look(self, request: Request, index: int, sampled: Sampled, is_stop: bool) -> bool:
        """Record what is to be known of the newest token; whether it completes a stop string."""
        count = request.sampling.logprobs
        if count is not None:
            assert sampled.ranked is not None
            request.logprobs.append(sampled.ranked.at(index, int(sampled.ids_S[index]), count))
        if request.on_token is not None:
            self._grown.append(request)
        return request.transcript is not None and not is_stop and request.transcript.read(request.output)

    def _finish(self, request: Request, stop_token: int | None) -> None:
        request.stop_token = stop_token
        request.release()
        if not request.runs_to_its_limit:
            self.ledger.lengths.learn(len(request.output), request.max_tokens)
        has_stop_string = False
        if request.transcript is not None:
            request.transcript.close(request.text_ids)
            has_stop_string = request.transcript.stop is not None
        request.finish_reason = "length" if stop_token is None and not has_stop_string else "stop"
        self._finished.append(request)
