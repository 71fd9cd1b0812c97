"""CUDA graphs of stateless calls by signature: the second call is captured, later ones replay it.

A signature is the shapes, dtypes and devices of the tensors among the arguments, and all other arguments by
value. A shape that comes once costs no capture. Tensors may lie on the host: a replay sends them straight to
where the graph reads them. Results are copied out, so that they outlive the next replay. Where a call runs
eagerly the reason is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastkernels.engine.core.graph_pool import Captures, GraphPool
from fastkernels.nn.batching import SMALL_BYTES, key_of, sent

# Each holds its inputs and results; their intermediates share one pool.
MAX_GRAPHS = 64
ALIGNED = 256  # bytes, at which any kernel may read as if the tensor were allocated alone


class Inputs:
    """What a graph reads: a copy on the device of each of these tensors. Small ones of the host lie in one
    buffer there, and cross to it in one copy."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self.pins = device.type == "cuda"
        self.begins: list[int | None] = []  # in the buffer
        self.size = 0
        for tensor in tensors:
            is_packed = tensor.device.type == "cpu" and tensor.nbytes <= SMALL_BYTES
            self.begins.append(self.size if is_packed else None)
            self.size += -(-tensor.nbytes // ALIGNED) * ALIGNED if is_packed else 0
        self.buffer = torch.empty(self.size, dtype=torch.uint8, device=device)
        self.tensors = [
            torch.empty_like(tensor, device=device) if begin is None else _part(self.buffer, begin, tensor)
            for tensor, begin in zip(tensors, self.begins)
        ]
        self.fill(tensors)

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Send others of the same signature. The host goes on: torch hands pinned memory out again only when
        it was fetched."""
        host = torch.empty(self.size, dtype=torch.uint8, pin_memory=self.pins) if self.size else None
        for static, begin, new in zip(self.tensors, self.begins, tensors, strict=True):
            if host is None or begin is None:
                static.copy_(new, non_blocking=True)
            else:
                _part(host, begin, new).copy_(new)
        if host is not None:
            self.buffer.copy_(host, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    inputs: Inputs
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
            return self.function(*_mapped(lambda tensor: sent(tensor, self.device), args))
        captured.inputs.fill([*_tensors(args)])
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
        key = key_of(args)
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
        inputs = Inputs([*_tensors(args)], self.device)
        statics = iter(inputs.tensors)
        read = _mapped(lambda _: next(statics), args)
        graph, result = self.pool.capture(lambda: self.function(*read))
        return Captured(graph, inputs, result)


def _part(buffer: Tensor, begin: int, like: Tensor) -> Tensor:
    """Bytes of a buffer as a tensor of the same form."""
    return buffer[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Those in a structure of lists and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure of lists, tuples and dicts, with other tensors in it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: _mapped(function, part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(function, part) for part in value])
    return value
