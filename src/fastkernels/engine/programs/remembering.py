"""`Remembering`: results of a stage by the content of its calls, so that equal media are encoded once.

Results of equal calls are one tensor, while it is used and, up to a bound of bytes, after that; those that
nobody has asked for longest go first. A call that waits for an equal one ahead of it is no launch.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fastkernels.engine.programs.batch_stage import BatchStage
from fastkernels.nn.program import Call


class Remembering:
    """stage: gives a tensor for each call. content_of: calls with equal contents have equal results. most:
    bytes that are kept."""

    def __init__(self, stage: BatchStage, content_of: Callable[[Call], bytes], most: int) -> None:
        self.stage, self.most = stage, most
        self.bytes = 0  # of all results that somebody has, this stage included
        self.num_asked = self.num_found = 0
        self._content_of = content_of
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()
        self._kept_bytes = 0
        self._ready: list[tuple[int, Tensor]] = []
        self._waiting: dict[bytes, list[int]] = {}  # content -> tickets, in order
        self._contents: dict[int, bytes] = {}  # of the stage's own tickets, which are counted here
        self._next = 0

    def submit(self, ticket: int, need: Call) -> None:
        content = self._content_of(need)
        self.num_asked += 1
        if content in self._kept:
            self._kept.move_to_end(content)
            self._ready.append((ticket, self._kept[content]))
        elif content in self._waiting:
            self._waiting[content].append(ticket)
        else:
            self.stage.submit(self._next, need)
            self._contents[self._next], self._waiting[content] = content, [ticket]
            self._next += 1
            return
        self.num_found += 1

    def advance(self) -> list[tuple[int, Any]]:
        found, self._ready = self._ready, []
        for own, result in self.stage.advance():
            content = self._contents.pop(own)
            found += [(ticket, result) for ticket in self._waiting.pop(content)]
            self._keep(content, result)
        return found

    def cancel(self, ticket: int) -> None:
        self._ready = [one for one in self._ready if one[0] != ticket]
        for own, content in self._contents.items():
            tickets = self._waiting[content]
            if ticket in tickets:
                tickets.remove(ticket)
                if not tickets:
                    self.stage.cancel(own)
                    del self._waiting[content], self._contents[own]
                return

    def abandon(self) -> None:
        """Forget all: after a failure nothing on the device can be trusted."""
        self.stage.abandon()
        self._ready.clear()
        self._waiting.clear()
        self._contents.clear()
        self._kept.clear()
        self._kept_bytes = 0

    def stats(self) -> dict[str, int]:
        return {"asked": self.num_asked, "found": self.num_found, "held_bytes": self.bytes}

    def _keep(self, content: bytes, result: Tensor) -> None:
        self.bytes += result.nbytes
        weakref.finalize(result, self._release, result.nbytes).atexit = False
        self._kept[content] = result
        self._kept_bytes += result.nbytes
        while self._kept_bytes > self.most:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes

    def _release(self, num_bytes: int) -> None:
        self.bytes -= num_bytes
