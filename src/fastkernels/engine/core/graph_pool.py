"""Where CUDA graphs are captured: one memory pool and one stream, so that graphs which are replayed one after
another share the memory of their intermediates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import torch

from fastkernels.kernels import counters

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Tape:
    """A capture under way; `cut` ends one graph and begins the next."""

    def __init__(self, handle: Any) -> None:
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._handle = handle

    def cut(self) -> None:
        self.end()
        self.begin()

    def begin(self) -> None:
        self.graphs.append(torch.cuda.CUDAGraph())
        self.graphs[-1].capture_begin(pool=self._handle)

    def end(self) -> None:
        self.graphs[-1].capture_end()


class GraphPool:
    """`disabled`: why nothing is captured or replayed; None: it is."""

    def __init__(self, device: torch.device, enforce_eager: bool = False) -> None:
        self.disabled: str | None = None
        if device.type != "cuda":
            self.disabled = f"no graphs on {device.type}"
        elif enforce_eager:
            self.disabled = "enforce_eager"
        self._handle: Any = None
        self._stream: torch.cuda.Stream | None = None

    def capture(self, function: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """The graph of `function`, and what its replays write."""
        self.warm_up(function)
        with self.tape() as tape:
            result = function()
        return tape.graphs[0], result

    def warm_up(self, function: Callable[[], object]) -> None:
        """Call what will be captured, on the stream of captures: compiles its kernels, fills its caches."""
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()
        counters.prepare()
        torch.cuda.current_stream().wait_stream(self._stream)

    @contextmanager
    def tape(self) -> Iterator[Tape]:
        """Capture what the body launches. A capture executes nothing: one that fails does no harm."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the capture needs cannot be freed while it is under way
        self._handle = self._handle or torch.cuda.graph_pool_handle()
        tape = Tape(self._handle)
        with torch.cuda.stream(self._stream):
            tape.begin()
            try:
                yield tape
            except BaseException:
                self._handle = None  # the next capture begins a pool of its own
                # Invalid already, perhaps: what made it so is on its way to the caller.
                with suppress(RuntimeError):
                    tape.end()
                raise
            tape.end()


class Captures(Generic[Key, Result]):
    """What was captured, by key. Where that fails the reason is kept and nothing tried again: a capture
    executes nothing, so no harm is done, and who runs eagerly for it says why."""

    def __init__(self) -> None:
        self.made: dict[Key, Result] = {}
        self._failed: dict[Key, str] = {}

    def __len__(self) -> int:
        return len(self.made)

    def __contains__(self, key: Key) -> bool:
        """Whether it was tried."""
        return key in self.made or key in self._failed

    def get(self, key: Key, capture: Callable[[], Result]) -> tuple[Result | None, str | None]:
        """What `capture` returned for this key, now or earlier; or None and why it failed."""
        if key not in self:
            try:
                self.made[key] = capture()
            except RuntimeError as error:
                said = str(error) or type(error).__name__
                self._failed[key] = f"capture failed: {said.splitlines()[0]}"
        return self.made.get(key), self._failed.get(key)


@contextmanager
def without_graphs(pools: Sequence[GraphPool], why: str) -> Iterator[None]:
    """Nothing is captured or replayed in the body."""
    before = [pool.disabled for pool in pools]
    for pool in pools:
        pool.disabled = why
    try:
        yield
    finally:
        for pool, disabled in zip(pools, before):
            pool.disabled = disabled
