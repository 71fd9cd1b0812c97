"""Which part of a run begins where, and begins again: each at least once, with one answer each.

A part whose attempt is lost with its node begins again. What a candidate does is an answer, and no reason to
ask again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastkernels.errors import BaselineError, FastKernelsError, MachineError, UsageError

KINDS = (UsageError, BaselineError, MachineError)
MOST_ATTEMPTS = 3  # a part under which so many attempts were lost may be what ends nodes


@dataclass(frozen=True)
class Part:
    """`body.judge(candidate)`, on a node, gives its answer."""

    name: str  # of no other part in the run
    body: Any
    candidate: str | None = None  # whose files go with it
    trials: int = 1
    gpus: int = 0  # of one node

    @property
    def room(self) -> int:
        """What it takes of a node: GPUs. On CPUs a trial has a node for itself, whose room is 1."""
        return max(self.gpus, 1)


@dataclass(frozen=True)
class Answered:
    node: str
    answer: Any


@dataclass(frozen=True)
class Lost:
    """The attempt ended with its node, or with its process from outside, before there was an answer."""

    node: str
    why: str
    is_dead: bool = False  # the node: nothing begins there any more, even if Ray still counts it


@dataclass(frozen=True)
class Problem:
    """An error that a part was answered with, and which of `KINDS` it is."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: FastKernelsError) -> Problem:
        kind = next((kind for kind in KINDS if isinstance(error, kind)), MachineError)
        return cls(kind.__name__, str(error))

    @property
    def error(self) -> FastKernelsError:
        return next(kind for kind in KINDS if kind.__name__ == self.kind)(self.message)


class Pool(Protocol):
    def start(self, part: Part, node: str) -> None:
        """Begin an attempt."""
        ...

    def ended(self) -> Sequence[tuple[Part, Answered | Lost]]:
        """Attempts that have ended since the last call. Waits a second at most."""
        ...

    def living(self) -> set[str]:
        """Names of nodes."""
        ...


def answers(
    parts: Sequence[Part],
    room: Mapping[str, int],
    pool: Pool,
    say: Callable[[str], None] = lambda text: None,
    show: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[Part, Answered]]:
    """Each part once, as its answer comes. A part that no node can answer has a Problem for one. `room`: of
    each node. `say` hears of attempts that were lost, `show` which go on."""
    left = dict(room)
    running: dict[str, str] = {}
    waiting = sorted(parts, key=lambda part: -part.room)  # small ones fill what large ones leave
    unanswered = {part.name for part in parts}
    lost: Counter[str] = Counter()
    dead: set[str] = set()
    while unanswered:
        living = pool.living() - dead
        for part in list(waiting):
            if not any(room[node] >= part.room for node in living & room.keys()):
                waiting.remove(part)
                unanswered.remove(part.name)
                size = f" with {part.gpus} GPUs" if part.gpus else ""
                yield part, _none(f"no node{size} is left in the cluster")
            elif free := [node for node in left if node in living and left[node] >= part.room]:
                node = max(free, key=lambda name: left[name])
                waiting.remove(part)
                left[node] -= part.room
                pool.start(part, node)
                running[part.name] = node
        if running:
            show(_told(running))
        for part, end in pool.ended():
            left[end.node] += part.room
            running.pop(part.name, None)
            if part.name not in unanswered:
                continue  # of an attempt that was taken for lost: the first answer counts
            if isinstance(end, Lost):
                dead |= {end.node} if end.is_dead else set()
                lost[part.name] += 1
                again = lost[part.name] < MOST_ATTEMPTS
                say(f"{part.name}: {end.why}" + ("; it begins again" if again else ""))
                if again:
                    waiting.append(part)
                    continue
                end = _none(f"lost {MOST_ATTEMPTS} times, the last time: {end.why}")
            unanswered.remove(part.name)
            yield part, end


def _told(running: Mapping[str, str]) -> str:
    (part, node), *others = running.items()
    return f"{part} on {node}" + (f", and {len(others)} more" if others else "")


def _none(why: str) -> Answered:
    return Answered("", Problem.of(MachineError(why)))
