"""Decode CUDA graphs: block tables, forward, head and sampler of a step in one launch.

A graph serves a padded number of rows, an upper bound of the context, and a variant of the sampler. It is
captured when the first such step comes, after a warm-up on the null row, which leaves no trace.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fastkernels.engine.core.graph_pool import Captures, GraphPool
from fastkernels.engine.core.inputs import Rows
from fastkernels.engine.core.packing import pack_decode, padding
from fastkernels.engine.core.sampler import Choice, Variant
from fastkernels.engine.core.shaping import RowShapes

# A graph computes for the longest context that it serves: block tables are gathered to that width.
SHORTEST_CONTEXT, CONTEXT_FACTOR = 512, 4


class Runner(Protocol):
    """What a capture needs of the model runner."""

    device: torch.device

    @property
    def rows(self) -> Rows: ...

    def shapes(self, variant: Variant) -> RowShapes | None: ...

    def compute_decode(
        self, packet: Tensor, sections: dict[str, slice], max_seq_len: int, variant: Variant
    ) -> Choice: ...


@dataclass(frozen=True, slots=True)
class Captured:
    size: int  # rows, padded
    graph: torch.cuda.CUDAGraph
    packet: Tensor  # read by the graph
    choice: Choice  # written by the graph


def graph_sizes(max_rows: int) -> list[int]:
    """1, 2, 4, by eights to 128, by sixteens to max_rows: the products of a step take as long as their tiles
    say, and a few rows of padding more can cost a seventh (docs/record/measured.md)."""
    sizes = {1, 2, 4, max_rows, *range(8, 128, 8), *range(128, max_rows, 16)}
    return sorted(size for size in sizes if size <= max_rows)


def context_bounds(max_len: int) -> list[int]:
    bounds, bound = [], SHORTEST_CONTEXT
    while bound < max_len:
        bounds.append(bound)
        bound *= CONTEXT_FACTOR
    return [*bounds, max_len]


class DecodeGraphs:
    def __init__(self, pool: GraphPool, max_rows: int, max_len: int) -> None:
        self.pool = pool
        self.sizes, self.contexts = graph_sizes(max_rows), context_bounds(max_len)
        self.captures: Captures[tuple[int, int, Variant], Captured] = Captures()

    def get(
        self, runner: Runner, num_rows: int, seq_len: int, variant: Variant
    ) -> tuple[Captured | None, str | None]:
        """The graph for a decode step of so many rows, captured now if need be; or None and why it runs
        eagerly."""
        if self.pool.disabled is not None:
            return None, self.pool.disabled
        size = self.sizes[bisect_left(self.sizes, num_rows)]
        key = (size, self.contexts[bisect_left(self.contexts, seq_len)], variant)
        return self.captures.get(key, lambda: self._capture(runner, *key))

    def _capture(self, runner: Runner, size: int, context: int, variant: Variant) -> Captured:
        packet = pack_decode(padding(len(runner.rows.tables_GRN)), size, runner.shapes(variant))
        buffer = torch.empty(packet.length, dtype=torch.int32, pin_memory=True)
        packet.write(buffer.numpy())
        static = buffer.to(runner.device)
        graph, choice = self.pool.capture(
            lambda: runner.compute_decode(static, packet.sections, context, variant)
        )
        return Captured(size, graph, static, choice)
