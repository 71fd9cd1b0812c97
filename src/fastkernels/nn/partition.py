"""How a model is split over the ranks of a group, and which part of it a rank has.

    with use_partition(Partition(rank=1, size=4)): model = cls(config)      every layer makes its own part

A layer asks `partition()` when it is made: what is split by columns has a share of the outputs, what is split
by rows a share of the inputs, attention a share of the heads, a vocabulary a share of its ids. Which places
of the whole parameter its part has, the layer says by `split(parameter, ...)`: whoever fills parameters, from
a checkpoint or at random, draws these alone. Outside `use_partition` a model is whole, and nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.errors import UsageError


@dataclass(frozen=True, slots=True)
class Partition:
    """splits_experts: a rank has some experts whole; otherwise a slice of each."""

    rank: int = 0
    size: int = 1
    splits_experts: bool = False

    @property
    def is_split(self) -> bool:
        return self.size > 1

    def share(self, count: int, what: str) -> range:
        """The rank's consecutive part of `count`; a UsageError names what cannot be divided."""
        each, rest = divmod(count, self.size)
        if rest:
            raise UsageError(f"tensor_parallel_size={self.size}: {count} {what} are no multiple of it")
        return range(self.rank * each, (self.rank + 1) * each)

    def heads(self, num_heads: int, num_kv_heads: int) -> tuple[range, range]:
        """Query heads, and the key and value heads that they read. Where there are more ranks than the
        latter, several ranks have the same one."""
        heads = self.share(num_heads, "attention heads")
        if num_kv_heads % self.size and self.size % num_kv_heads == 0:
            first = self.rank * num_kv_heads // self.size
            return heads, range(first, first + 1)
        return heads, self.share(num_kv_heads, "key and value heads")


WHOLE = Partition()
_current = WHOLE


def partition() -> Partition:
    """The one in force."""
    return _current


@contextmanager
def use_partition(new: Partition) -> Iterator[None]:
    """Models that are made in the body are split."""
    global _current
    previous, _current = _current, new
    try:
        yield
    finally:
        _current = previous


@dataclass(frozen=True, slots=True)
class Part:
    """Of a tensor of this shape the places `runs` of one dimension, one behind another. Without runs the
    rank's part of a sum is nothing: zeros, in the shape of the whole."""

    shape: tuple[int, ...]
    dim: int
    runs: tuple[range, ...]

    @property
    def length(self) -> int:
        return sum(map(len, self.runs))

    def of(self, whole: Any) -> Tensor:
        """The places of a tensor, or of what reads the slices of one that it is asked for."""
        ahead = (slice(None),) * self.dim
        pieces = [whole[(*ahead, slice(run.start, run.stop))] for run in self.runs]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, self.dim)

    def rows(self) -> Part:
        """The same places of the whole as rows: [rows, inputs] of a matrix or of a stack of matrices."""
        *stack, inputs = self.shape
        rows = math.prod(stack)
        if self.dim == len(stack):
            return Part((rows, inputs), 1, self.runs)
        inner = math.prod(stack[self.dim + 1 :])
        outer = range(0, rows, inner * stack[self.dim])
        runs = [range(at + run.start * inner, at + run.stop * inner) for at in outer for run in self.runs]
        return Part((rows, inputs), 0, tuple(runs))

    def within(self, first: int, count: int) -> Part:
        """Of these rows of it alone, counted from the first of them."""
        shape = (count, *self.shape[1:])
        if self.dim:
            return Part(shape, self.dim, self.runs)
        cut = [range(max(run.start - first, 0), min(run.stop - first, count)) for run in self.runs]
        return Part(shape, 0, tuple(run for run in cut if run))


def split(parameter: Tensor | None, dim: int, whole: int, runs: Sequence[range]) -> None:
    """Say of a layer's parameter which places of the whole one it has, where the model is split."""
    if parameter is not None and _current.is_split:
        shape = list(parameter.shape)
        shape[dim] = whole
        parameter.part = Part(tuple(shape), dim, tuple(runs))  # pyright: ignore[reportAttributeAccessIssue]


def part_of(parameter: Tensor) -> Part | None:
    """What `split` said of it; None: it is whole."""
    return getattr(parameter, "part", None)


def is_split(model: nn.Module) -> bool:
    """Whether it was made as one rank's part."""
    return any(part_of(parameter) is not None for parameter in model.parameters())
