"""CUDA graphs of stateless calls by signature: the second call is captured, later ones replay it.

A signature is the shapes, dtypes and devices of the tensors among the arguments, and all other arguments by
value. A shape that comes once costs no capture. Tensors may lie on the host: a replay sends them straight to
where the graph reads them. Results are copied out, so that they outlive the next replay. Where a call runs
eagerly the reason is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastkernels.engine.core.graph_pool import Captures, GraphPool
from fastkernels.nn.batching import Crossing, key_of, sent

# Each holds its inputs and results; their intermediates share one pool.
MAX_GRAPHS = 64


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]  # read by the graph
    result: Any  # written by the graph


class CallGraphs:
    """`function`, replayed where it can be. It must not read its tensors on the host."""

    def __init__(
        self, function: Callable[..., Any], device: torch.device, enforce_eager: bool = False
    ) -> None:
        self.function, self.device = function, device
        self.pool = GraphPool(device, enforce_eager)
        self.num_calls = self.num_replays = 0
        self.eager_calls: Counter[str] = Counter()  # reason -> calls
        self._seen: set[Hashable] = set()
        self.captures: Captures[Hashable, Captured] = Captures()

    def __call__(self, *args: Any) -> Any:
        self.num_calls += 1
        captured, reason = self._get(args)
        if captured is None:
            assert reason is not None
            self.eager_calls[reason] += 1
            return self.function(*_placed(args, lambda tensor: sent(tensor, self.device)))
        for static, new in zip(captured.inputs, _sources(args), strict=True):
            static.copy_(new, non_blocking=True)  # pinned memory is handed out again only when it was fetched
        captured.graph.replay()
        self.num_replays += 1
        return _mapped(torch.clone, captured.result)

    def stats(self) -> dict[str, object]:
        return {
            "calls": self.num_calls,
            "graph_replays": self.num_replays,
            "graphs": len(self.captures),
            "eager_calls": dict(self.eager_calls),
        }

    def _get(self, args: tuple[Any, ...]) -> tuple[Captured | None, str | None]:
        """The graph for such a call, captured now if it is the second; or None and why it runs eagerly."""
        if self.pool.disabled is not None:
            return None, self.pool.disabled
        # Inputs are copied to where the graph reads them, a loop's first state from the host, later ones not.
        key = key_of(args, by_device=False)
        if (captured := self.captures.made.get(key)) is not None:
            return captured, None
        if key not in self.captures:
            if key not in self._seen:
                self._seen.add(key)
                return None, "first call of its shapes"
            if len(self.captures) == MAX_GRAPHS:
                return None, f"{MAX_GRAPHS} graphs are captured"
        return self.captures.get(key, lambda: self._capture(args))

    def _capture(self, args: tuple[Any, ...]) -> Captured:
        inputs: list[Tensor] = []

        def kept(tensor: Tensor) -> Tensor:
            inputs.append(torch.empty_like(tensor, device=self.device).copy_(tensor))
            return inputs[-1]

        read = _placed(args, kept)
        graph, result = self.pool.capture(lambda: self.function(*read))
        return Captured(graph, inputs, result)


def _sources(value: Any) -> Iterator[Tensor]:
    """Where arguments lie, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Crossing):
        yield value.buffer
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _sources(part)


def _placed(args: tuple[Any, ...], place: Callable[[Tensor], Tensor]) -> list[Any]:
    """What the function gets, if `place` has put each source elsewhere."""
    placed: list[Any] = []
    for value in args:
        if isinstance(value, Crossing):
            placed += value.tensors(place(value.buffer))
        else:
            placed.append(_mapped(place, value))
    return placed


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure of lists, tuples and dicts, with other tensors in it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: _mapped(function, part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(function, part) for part in value])
    return value
