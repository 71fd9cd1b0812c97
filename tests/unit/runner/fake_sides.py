"""Two simulated sides of a model's trial, on one fake clock."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class FakeSides:
    """make(sides, name, seconds, ...) is one side; a batch of the baseline's takes 0.4 s of `now`, the
    candidate is as its arguments say. log: what tests and sides note; changes: of the noise runs."""

    isolation, stays_root = (), ""

    def __init__(self, make: Callable[..., Any], **candidate: Any) -> None:
        self.now, self.log = 0.0, []
        self._make = make
        self.sides = {
            "baseline": make(self, "baseline", 0.4),
            "candidate": make(self, "candidate", **candidate),
        }
        self.changes: list[dict[str, Any]] = []

    def use(self, side: str) -> Any:
        return self.sides[side]

    @contextlib.contextmanager
    def fresh(self, **change: Any) -> Iterator[Any]:
        self.changes.append(change)
        yield self._make(self, "noise", 0.4)

    def close(self) -> None:
        self.log.append(("all", "close"))
