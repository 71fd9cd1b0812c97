"""CUDA graphs of stateless calls by signature: the second call is captured, later ones replay it.

A signature is the shapes and dtypes of the tensors among the arguments, and all other arguments by value. A
shape that comes once costs no capture. Results are copied out, so that they outlive the next replay. Where a
call runs eagerly the reason is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fastkernels.engine.core.graph_pool import Captures, GraphPool
from fastkernels.nn.batching import key_of

# Each holds its inputs and results; their intermediates share one pool.
MAX_GRAPHS = 64


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    args: list[Any]  # read by the graph
    result: Any  # written by the graph


class CallGraphs:
    """`function`, replayed where it can be. It must not read its tensors on the host."""

    def __init__(
        self, function: Callable[..., Any], device: torch.device, enforce_eager: bool = False
    ) -> None:
        self.function = function
        self.pool = GraphPool(device, enforce_eager)
        self.num_calls = self.num_replays = 0
        self.eager_calls: Counter[str] = Counter()  # reason -> calls
        self._seen: set[Hashable] = set()
        self.captures: Captures[Hashable, Captured] = Captures()

    def __call__(self, *args: Any) -> Any:
        self.num_calls += 1
        captured, reason = self._get(list(args))
        if captured is None:
            assert reason is not None
            self.eager_calls[reason] += 1
            return self.function(*args)
        for static, new in zip(tree_leaves(captured.args), tree_leaves(list(args)), strict=True):
            if isinstance(static, Tensor):
                static.copy_(new, non_blocking=True)
        captured.graph.replay()
        self.num_replays += 1
        return _cloned(captured.result)

    def stats(self) -> dict[str, object]:
        return {
            "calls": self.num_calls,
            "graph_replays": self.num_replays,
            "graphs": len(self.captures),
            "eager_calls": dict(self.eager_calls),
        }

    def _get(self, args: list[Any]) -> tuple[Captured | None, str | None]:
        """The graph for such a call, captured now if it is the second; or None and why it runs eagerly."""
        if self.pool.disabled is not None:
            return None, self.pool.disabled
        key = key_of(args)
        if key not in self.captures:
            if key not in self._seen:
                self._seen.add(key)
                return None, "first call of its shapes"
            if len(self.captures) == MAX_GRAPHS:
                return None, f"{MAX_GRAPHS} graphs are captured"
        return self.captures.get(key, lambda: self._capture(args))

    def _capture(self, args: list[Any]) -> Captured:
        static = _cloned(args)
        graph, result = self.pool.capture(lambda: self.function(*static))
        return Captured(graph, static, result)


def _cloned(values: Any) -> Any:
    return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, values)
