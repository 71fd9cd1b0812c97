"""`ImageModel`: what the public faces share of models whose requests are images, to see or to generate."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch

from fastkernels.engine import memory
from fastkernels.engine.batch_stage import BatchStage
from fastkernels.engine.batching import Batching, Stacked
from fastkernels.engine.call_graphs import CallGraphs
from fastkernels.engine.checks import MOST_SEED, Errors, require_errors, require_integer
from fastkernels.engine.graph_pool import without_graphs
from fastkernels.engine.images import image_of
from fastkernels.engine.machine import device_of, dtype_of
from fastkernels.engine.program import Call, Engine, Program
from fastkernels.errors import RequestError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model, weights_bytes
from fastkernels.nn.context import use_step
from fastkernels.records import Size, default_size


class ImageModel:
    """A loaded model behind BatchStages, of which "model" is the first; `model`, `dtype`, `device`,
    `overlay`, `config`, `size` and `seed` as in LLM. max_batch: images of one launch (default: the face's).

    Raises UsageError and its kin for what cannot be loaded, MachineError for what does not fit this machine.
    """

    answer: ClassVar[str]  # the kind that the face serves
    usual_batch: ClassVar[int] = 64

    def __init__(
        self,
        model: str | os.PathLike[str] | dict[str, Any],
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        overlay: Overlay | None = None,
        config: str | None = None,
        size: Size | None = None,
        seed: int = 0,
        max_batch: int | None = None,
        enforce_eager: bool = False,
    ) -> None:
        require_integer("seed", seed, 0, MOST_SEED)
        most = self.usual_batch if max_batch is None else max_batch
        require_integer("max_batch", most, 1)
        self.device = device_of(device)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        self.source = find(model, config, size or default_size(self.device.type))
        self.source.require((self.answer,), type(self).__name__)
        self.dtype = self.source.dtype(self.device) if dtype == "auto" else dtype_of(dtype)
        self.overlay = overlay or Overlay.over_baseline()
        self._configure()
        memory.require_weights_fit(weights_bytes(self.source, self.dtype), self.device)
        self.model: Any = load_model(self.source, self.overlay, self.device, self.dtype, seed)
        self.graphs = CallGraphs(self._compute, self.device, enforce_eager)
        self.stage = BatchStage(self.graphs, self._batching(), most)
        further = self._further_stages()
        self.further_graphs = {
            name: CallGraphs(_in_a_step(function), self.device, enforce_eager)
            for name, (function, _) in further.items()
        }
        stages = {
            name: BatchStage(self.further_graphs[name], max_batch=min(most, largest))
            for name, (_, largest) in further.items()
        }
        self.engine = Engine({"model": self.stage, **stages})

    def run(self, requests: Sequence[Any], errors: Errors = "raise") -> list[Any]:
        """The answer to each request, in order, perhaps still under way on the device.

        errors: of requests that cannot be served. "raise": RequestError for the first, with its place, and
        nothing is computed if the request itself shows it. "return": its RequestError stands in its place,
        and the others have their answers.
        """
        require_errors(errors)
        if not isinstance(requests, Iterable):
            raise RequestError(f"requests come in a list: {requests!r:.60} is none")
        programs = (self._program(request) for request in requests)
        if errors == "return":
            return self.engine.run(programs)
        try:
            return self.engine.run(_to_the_end(place, program) for place, program in enumerate(programs))
        except _Refused as refused:
            raise RequestError(f"request {refused.place}: {refused.error}") from refused.error

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Without CUDA graphs for the body: hooks on modules see every call."""
        with without_graphs([g.pool for g in (self.graphs, *self.further_graphs.values())], "eager()"):
            yield

    def stats(self) -> dict[str, Any]:
        """Counters since the start: launches, graphs, eager launches by reason; those of further stages below
        their names."""
        further = {name: graphs.stats() for name, graphs in self.further_graphs.items()}
        return {**self.graphs.stats(), "images": sum(self.stage.batch_sizes), **further}

    # ---- what a face may define

    def _configure(self) -> None:
        """Read of the configuration what is not the model's own. UsageError, before there are weights."""

    def _batching(self) -> Batching:
        """How requests become one launch."""
        return Stacked()

    def _further_stages(self) -> dict[str, tuple[Callable[..., Any], int]]:
        """Beside `model`: what a stage computes, and the most calls that it may launch as one."""
        return {}

    def _program(self, request: Any) -> Program:
        """What a request needs: one pass over its image."""
        return (yield Call("model", image_of(request)))

    def _forward(self, *args: Any) -> Any:
        """The pass itself: it must not read its tensors on the host."""
        return self.model(*args)

    def _compute(self, *args: Any) -> Any:
        return _in_a_step(self._forward)(*args)


class _Refused(Exception):
    """Ends all programs of a run, as a RequestError does not: none is launched before all have begun."""

    def __init__(self, place: int, error: RequestError) -> None:
        self.place, self.error = place, error
        super().__init__(str(error))


def _to_the_end(place: int, program: Program) -> Program:
    try:
        return (yield from program)
    except RequestError as error:
        raise _Refused(place, error) from error


def _in_a_step(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*args: Any) -> Any:
        with use_step(None):  # attention plans made for one layer serve all
            return function(*args)

    return compute
