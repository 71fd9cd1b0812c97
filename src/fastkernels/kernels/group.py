"""The ranks that compute together, as one of them sees them, and all of them in one process.

    with use_group(Distributed()): y = module(x)    a rank of torch.distributed's group, as in production
    y_R = simulated(calls)                          all ranks' calls, one after another: oracle, audits

A collective kernel asks `group()` for its peers. Nothing is said about what they exchange: `gather` gives a
reference all that there is to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Group(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def gather(self, x: Tensor) -> list[Tensor]:
        """x of every rank, in their order; shape and dtype are the same everywhere."""
        ...


_current: Group | None = None


def group() -> Group:
    """The group in flight; a RuntimeError outside `use_group`."""
    if _current is None:
        raise RuntimeError("No group in flight: call the module inside `with use_group(...)`")
    return _current


@contextmanager
def use_group(new: Group) -> Iterator[None]:
    global _current
    previous, _current = _current, new
    try:
        yield
    finally:
        _current = previous


class Distributed:
    """torch.distributed's default group, which must have been initialised."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank, self.size, self._all_gather = dist.get_rank(), dist.get_world_size(), dist.all_gather

    def gather(self, x: Tensor) -> list[Tensor]:
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._all_gather(parts, x)
        return parts


def simulated(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """What each rank's call returns. A call that meets a collective is made again once all ranks have told
    what they bring to it, so each must give the same whenever it is made, and change nothing.

    RuntimeError where some ranks meet a collective that others do not.
    """
    met: list[list[Tensor]] = []
    while True:
        ranks = [_Simulated(rank, len(calls), met) for rank in range(len(calls))]
        results: list[Result] = []
        for rank, call in zip(ranks, calls):
            with use_group(rank), suppress(_Waits):
                results.append(call())
        if len(results) == len(calls):
            return results
        if results:
            raise RuntimeError(f"{len(results)} of {len(calls)} ranks end before the others' next collective")
        met.append([rank.brought for rank in ranks])


def not_distributed(*_: object) -> str | None:
    """Why torch.distributed cannot serve a call in the group in flight, or None."""
    return None if isinstance(group(), Distributed) else "the ranks are simulated in one process"


class Sketched:
    """A rank of a group whose calls are made on meta tensors: nobody has anything to tell."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size

    def gather(self, x: Tensor) -> list[Tensor]:
        return [torch.empty_like(x) for _ in range(self.size)]


class _Waits(Exception):
    """A rank is at a collective to which not all have come yet."""


class _Simulated:
    brought: Tensor

    def __init__(self, rank: int, size: int, met: list[list[Tensor]]) -> None:
        self.rank, self.size, self._met, self._next = rank, size, met, 0

    def gather(self, x: Tensor) -> list[Tensor]:
        if self._next == len(self._met):
            self.brought = x.clone()
            raise _Waits
        self._next += 1
        return [brought.clone() for brought in self._met[self._next - 1]]  # the rank's own, as over a network
