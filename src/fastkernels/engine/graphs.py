"""Decode CUDA graphs: block tables, forward, head and sampler of a step in one launch.

A graph serves a padded number of rows, an upper bound of the context, and a variant of the sampler. It is
captured when the first such step comes, after a warm-up on the null row (which leaves no trace), from one
memory pool and on one stream. Where capture fails the reason is kept, and every step that runs eagerly for it
is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastkernels.engine.packing import pack_decode, padding
from fastkernels.engine.plan import Plan
from fastkernels.engine.sampler import Choice, Variant
from fastkernels.kernels import counters

if TYPE_CHECKING:
    from fastkernels.engine.runner import ModelRunner

# A graph computes for the longest context that it serves: block tables are gathered to that width.
SHORTEST_CONTEXT, CONTEXT_FACTOR = 2048, 4


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    packet: Tensor  # read by the graph
    choice: Choice  # written by the graph


def graph_sizes(max_rows: int) -> list[int]:
    """1, 2, 4, by eights to 128, by sixteens to 256, by steps of 32 to 512 ... max_rows: above 64 less than a
    ninth of the rows is padding, which is computed as they are."""
    sizes, step = {1, 2, 4, max_rows}, 8
    while step <= max_rows:
        sizes |= {count * step for count in range(1, 17)}
        step *= 2
    return sorted(size for size in sizes if size <= max_rows)


def context_bounds(max_len: int) -> list[int]:
    bounds, bound = [], SHORTEST_CONTEXT
    while bound < max_len:
        bounds.append(bound)
        bound *= CONTEXT_FACTOR
    return [*bounds, max_len]


class DecodeGraphs:
    def __init__(
        self, device: torch.device, max_rows: int, max_len: int, enforce_eager: bool = False
    ) -> None:
        self.sizes, self.contexts = graph_sizes(max_rows), context_bounds(max_len)
        self.disabled: str | None = None
        if device.type != "cuda":
            self.disabled = f"no graphs on {device.type}"
        elif enforce_eager:
            self.disabled = "enforce_eager"
        self._captured: dict[tuple[int, int, Variant], Captured] = {}
        self._failed: dict[tuple[int, int, Variant], str] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    @property
    def num_captured(self) -> int:
        return len(self._captured)

    def size_for(self, plan: Plan) -> tuple[int, str | None]:
        """The padded number of rows for a plan, and why it cannot be served (None: it can)."""
        if self.disabled is not None:
            return 0, self.disabled
        if not plan.is_decode:
            return 0, "step with prefill rows"
        return self.sizes[bisect_left(self.sizes, len(plan.rows_B))], None

    def get(
        self, runner: ModelRunner, size: int, seq_len: int, variant: Variant
    ) -> tuple[Captured | None, str | None]:
        """The graph for such a step, captured now if need be; or None and the reason."""
        key = (size, self.contexts[bisect_left(self.contexts, seq_len)], variant)
        if key not in self._captured and key not in self._failed:
            try:
                self._captured[key] = self._capture(runner, *key)
            except (RuntimeError, NotImplementedError) as error:
                # A capture executes nothing: no harm is done. Such steps run eagerly and say why.
                self._pool = None
                self._failed[key] = f"capture failed: {str(error).splitlines()[0]}"
        return self._captured.get(key), self._failed.get(key)

    def clear(self) -> None:
        """Free the graphs and their memory."""
        self._captured.clear()
        self._failed.clear()
        self._pool = None

    def _capture(self, runner: ModelRunner, size: int, context: int, variant: Variant) -> Captured:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream = self._stream or torch.cuda.Stream()
        packet = pack_decode(padding(len(runner.rows.tables_GRN)), size, runner.shapes(variant))
        buffer = torch.empty(packet.length, dtype=torch.int32, pin_memory=True)
        packet.write(buffer.numpy())
        static = buffer.to(runner.device)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            runner.compute_decode(static, packet.sections, context, variant)  # compiles kernels, fills caches
        counters.prepare()
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            choice = runner.compute_decode(static, packet.sections, context, variant)
        return Captured(graph, static, choice)
