"""`BatchStage`: stateless calls, grouped by equal keys and launched as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from fastkernels.nn.batching import Stacked, take
from fastkernels.nn.program import Batching, Bounded, Call, Dividing, Reading


class BatchStage:
    """Calls with equal keys (of their batching) and equal loops run as one batch.

    function(*args) gets the joined arguments of a batch and returns a tensor (or a list of them) whose first
    dimension is the call, unless the batching divides results itself. With CallGraphs as the function a batch
    whose shapes were seen before is replayed.
    has_room: whether results have somewhere to go; nothing is launched while they pile up before another
    stage.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        batching: Batching | None = None,
        max_batch: int = 64,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self.function, self.batching, self.max_batch = function, batching or Stacked(), max_batch
        self._has_room = has_room
        # Asked once: whether an object has a protocol's methods is a search of 25 us.
        self._read = self.batching.read if isinstance(self.batching, Reading) else None
        self._divide = self.batching.divide if isinstance(self.batching, Dividing) else None
        self._fitting = self.batching.fitting if isinstance(self.batching, Bounded) else None
        self.batch_sizes: list[int] = []  # of every launch, for statistics
        self._pending: dict[tuple[Hashable, int], list[tuple[int, tuple[Any, ...]]]] = {}

    def submit(self, ticket: int, need: Call) -> None:
        args = need.args if self._read is None else self._read(need.args)
        key = (self.batching.key(args), need.loop)
        self._pending.setdefault(key, []).append((ticket, args))

    def advance(self) -> list[tuple[int, Any]]:
        """Launch one batch of the key that waits longest; results may still be under way on the device."""
        if not self._pending or not self._has_room():
            return []
        key = next(iter(self._pending))
        waiting = self._pending.pop(key)
        batch = self._fits(waiting)
        rest = waiting[len(batch) :]
        if rest:
            self._pending[key] = rest
        self.batch_sizes.append(len(batch))
        with torch.inference_mode():
            calls = [args for _, args in batch]
            args = self.batching.join(calls)
            result = self.function(*args)
            for _ in range(key[1] - 1):
                result = self.function(result, *args[1:])
            if self._divide is not None:
                shares = self._divide(result, calls)
            else:
                shares = [take(result, i) for i in range(len(batch))]
        return [(ticket, share) for (ticket, _), share in zip(batch, shares, strict=True)]

    def _fits(self, waiting: list[tuple[int, tuple[Any, ...]]]) -> list[tuple[int, tuple[Any, ...]]]:
        """Those of them that one launch takes."""
        waiting = waiting[: self.max_batch]
        return waiting if self._fitting is None else waiting[: self._fitting([args for _, args in waiting])]

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
