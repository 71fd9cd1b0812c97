"""Two simulated sides of a model's trial, on one fake clock."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class FakeSides:
    """make(sides, name, seconds, ...) is one side; a batch of the baseline's takes 0.4 s of `now`, the
    candidate is as its arguments say. log: what tests and sides note; changes: of the noise runs; exclusive:
    a side is another process in each of its turns."""

    isolation, stays_root, exclusive = (), "", False

    def __init__(self, make: Callable[..., Any], **candidate: Any) -> None:
        self.now, self.log = 0.0, []
        self._make = make
        self.sides = {
            "baseline": make(self, "baseline", 0.4),
            "candidate": make(self, "candidate", **candidate),
        }
        self.changes: list[dict[str, Any]] = []
        self._last = ""
        self.put_back: list[str] = []
        for side in self.sides.values():
            side.warmed = set()

    def use(self, side: str) -> Any:
        if self.exclusive and side != self._last:
            self.sides[side].warmed = set()
        self._last = side
        return self.sides[side]

    @contextlib.contextmanager
    def fresh(self, **change: Any) -> Iterator[Any]:
        self.changes.append(change)
        yield self._make(self, "noise", 0.4)

    def note_put_back(self, names: list[str]) -> None:
        self.put_back += [name for name in names if name not in self.put_back]

    def close(self) -> None:
        self.log.append(("all", "close"))
        for side in self.sides.values():
            side.warmed = set()
