"""`TokenStage`: autoregressive decoding over rows and caches. Stateless calls: batch_stage.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fastkernels.engine.core.arrivals import Arrivals
from fastkernels.engine.core.plan import Plan, Sampled
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.scheduler import Scheduler
from fastkernels.engine.programs.program import Tokens


class Launched(Protocol):
    @property
    def plan(self) -> Plan: ...

    def result(self) -> Sampled: ...


class Device(Protocol):
    def launch(self, plan: Plan) -> Launched: ...


class TokenStage:
    """Autoregressive decoding: step n is planned and launched before the ids of n-1 are read."""

    def __init__(
        self, scheduler: Scheduler, device: Device, make_request: Callable[[int, Tokens], Request]
    ) -> None:
        """make_request(serial, need) fills in defaults, or raises RequestError if it cannot be served."""
        self.scheduler, self.device, self._make_request = scheduler, device, make_request
        self.ledger, self.arrivals = scheduler.ledger, Arrivals(scheduler.ledger)
        self._flying: Launched | None = None
        self._next_serial = 0
        self._requests: dict[int, Request] = {}  # by ticket
        self._tickets: dict[int, int] = {}  # serial -> ticket

    def submit(self, ticket: int, need: Tokens) -> None:
        request = self._make_request(self._next_serial, need)
        self._next_serial += 1
        self._requests[ticket], self._tickets[request.serial] = request, ticket
        self.scheduler.add(request)

    def advance(self) -> list[tuple[int, Request]]:
        if self.ledger.is_idle and self._flying is None:
            return []
        plan = self.scheduler.plan()
        launched = self.device.launch(plan) if plan is not None else None
        if self._flying is not None:
            self.arrivals.retire(self._flying.plan, self._flying.result())
        assert launched or self._flying, "the scheduler plans nothing and nothing is in flight"
        self._flying = launched
        # Everything is consistent again: a reader may cancel any request, its own included.
        for request in self.arrivals.grown():
            if request.serial in self._tickets and request.on_token is not None:
                request.on_token(request)
        ended = [request for request in self.arrivals.finished() if request.serial in self._tickets]
        for request in ended:
            del self._requests[self._tickets[request.serial]]
        return [(self._tickets.pop(request.serial), request) for request in ended]

    def cancel(self, ticket: int) -> None:
        """Wherever the request is: its row and its blocks are free at once."""
        request = self._requests.pop(ticket, None)
        if request is not None:
            del self._tickets[request.serial]
            self.scheduler.abort(request)

    def abandon(self) -> None:
        self.ledger.abandon()
        self.arrivals.forget()
        self._requests.clear()
        self._tickets.clear()
        self._flying = None
