"""The two kinds of stage: `TokenStage` owns rows and caches, `BatchStage` is a stateless call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fastkernels.engine.arrivals import Arrivals
from fastkernels.engine.plan import Plan, Sampled
from fastkernels.engine.program import Call, Tokens
from fastkernels.engine.requests import Request
from fastkernels.engine.scheduler import Scheduler


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
            self.ledger.abort(request)

    def abandon(self) -> None:
        self.ledger.abandon()
        self.arrivals.forget()
        self._requests.clear()
        self._tickets.clear()
        self._flying = None


class BatchStage:
    """Calls with equal keys run as one batch: tensors of the same shapes and dtypes, equal other arguments,
    equal loop.

    function(*args) gets each tensor argument stacked along a new first dimension and returns a tensor (or a
    list of them) with that dimension; everything else is passed on as it is.
    """

    def __init__(self, function: Callable[..., Any], max_batch: int = 64) -> None:
        self.function, self.max_batch = function, max_batch
        self.batch_sizes: list[int] = []  # of every launch, for statistics
        self._pending: dict[Hashable, list[tuple[int, Call]]] = {}

    def submit(self, ticket: int, need: Call) -> None:
        self._pending.setdefault((key_of(need.args), need.loop), []).append((ticket, need))

    def advance(self) -> list[tuple[int, Any]]:
        """Launch one batch of the key that waits longest; results may still be under way on the device."""
        if not self._pending:
            return []
        key = next(iter(self._pending))
        waiting = self._pending.pop(key)
        batch, rest = waiting[: self.max_batch], waiting[self.max_batch :]
        if rest:
            self._pending[key] = rest
        self.batch_sizes.append(len(batch))
        args = [stack(column) for column in zip(*(call.args for _, call in batch))]
        with torch.inference_mode():
            result = self.function(*args)
            for _ in range(batch[0][1].loop - 1):
                result = self.function(result, *args[1:])
        return [(ticket, take(result, i)) for i, (ticket, _) in enumerate(batch)]

    def cancel(self, ticket: int) -> None:
        for key, waiting in self._pending.items():
            kept = [one for one in waiting if one[0] != ticket]
            if len(kept) < len(waiting):
                if kept:
                    self._pending[key] = kept
                else:
                    del self._pending[key]
                return

    def abandon(self) -> None:
        self._pending.clear()


def key_of(value: Any) -> Hashable:
    """What must be equal for two arguments to share a batch."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(key_of(part) for part in value))
    return value


def stack(values: Sequence[Any]) -> Any:
    """One argument for a batch: tensors stacked, lists element by element, others (all equal) as they are."""
    first = values[0]
    if isinstance(first, Tensor):
        return torch.stack(list(values))
    if isinstance(first, (list, tuple)):
        return [stack(parts) for parts in zip(*values)]
    return first


def take(result: Any, index: int) -> Any:
    """One call's share of a batch's result."""
    return [take(part, index) for part in result] if isinstance(result, (list, tuple)) else result[index]
