"""`Model`: the public face of all models whose answers are no tokens.

    model = Model("siglip2", config="tiny", seed=1)       a registered configuration: random weights
    model = Model("path/to/folder")                       a Hugging Face folder or id: real weights
    answers = model.run([{"image": image_HWC}, ...])      named outputs of each request: {"features": [D]}

A request has the inputs of the model's `program` by name (nn/program.py), of one without it those of its
`forward`. Encoder, Detector and ImagePipeline are the same with names of their own.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fastkernels.engine.core import memory
from fastkernels.engine.core.checks import (
    MOST_SEED,
    Errors,
    device_of,
    dtype_of,
    require_errors,
    require_integer,
)
from fastkernels.engine.core.graph_pool import without_graphs
from fastkernels.engine.media.arrays import value_of
from fastkernels.engine.programs.batch_stage import BatchStage
from fastkernels.engine.programs.call_graphs import CallGraphs
from fastkernels.engine.programs.program import Engine
from fastkernels.errors import RequestError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model, weights_bytes
from fastkernels.nn.batching import Stacked
from fastkernels.nn.context import in_a_step
from fastkernels.nn.program import Batching, Call, Place, Preparing, Program, Stage
from fastkernels.records import Size, default_size

FORWARD = "forward"


class Model:
    """A loaded model behind its stages; `model`, `dtype`, `device`, `overlay`, `config`, `size` and `seed` as
    in LLM. max_batch: the most calls of one launch, where a stage has no smaller bound of its own.

    Raises UsageError and its kin for what cannot be loaded, MachineError for what does not fit this machine.
    """

    answers: ClassVar[tuple[str, ...]] = ()  # outputs that the face serves; none: all but tokens

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
        if max_batch is not None:
            require_integer("max_batch", max_batch, 1)
        self.device = device_of(device)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        self.source = find(model, config, size or default_size(self.device.type))
        self.source.require(self.answers, type(self).__name__)
        self.dtype = self.source.dtype(self.device) if dtype == "auto" else dtype_of(dtype)
        self.overlay = overlay or Overlay.over_baseline()
        memory.require_weights_fit(weights_bytes(self.source, self.dtype), self.device)
        self.model: Any = load_model(self.source, self.overlay, self.device, self.dtype, seed)
        self.model.place = Place(self.device, self.dtype)
        declared = self.model.stages() if hasattr(self.model, "stages") else {FORWARD: Stage()}
        has_program = hasattr(self.model, "program")
        self._ask: Callable[..., Program] = self.model.program if has_program else self._forward
        self._signature = inspect.signature(self.model.program if has_program else self.model.forward)
        self.graphs = {
            name: CallGraphs(self._in_a_step(name, stage.batching), self.device, enforce_eager)
            for name, stage in declared.items()
        }
        stacked = Stacked(self.device)
        self.stages = {
            name: BatchStage(
                self.graphs[name], stage.batching or stacked, min(stage.most, max_batch or stage.most)
            )
            for name, stage in declared.items()
        }
        self.engine = Engine({**self.stages})
        self._taken: set[frozenset[str]] = set()  # names of inputs that fit the signature
        self._num_requests = 0

    def run(self, requests: Sequence[Any], errors: Errors = "raise") -> list[Any]:
        """The outputs of each request, in order, by name, perhaps still under way on the device. Inputs are
        tensors, arrays, RGB images of PIL and numbers.

        errors: of requests that cannot be served. "raise": RequestError for the first, with its place, and
        nothing is computed if the request itself shows it. "return": its RequestError stands in its place,
        and the others have their answers.
        """
        if not isinstance(requests, Iterable):
            raise RequestError(f"requests come in a list: {requests!r:.60} is none")
        return self._run((self._program(request) for request in requests), errors)

    def finish(
        self, outputs: Sequence[Mapping[str, Any]], requests: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Tensor]]:
        """What the model makes of the outputs of these requests beside what `run` ends with: images of
        latents. A model without such a part has no `finish`."""
        pairs = zip(outputs, requests, strict=True)
        return self._run((self.model.finish(_values(o), **_values(r)) for o, r in pairs), "raise")

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Without CUDA graphs for the body: hooks on modules see every call."""
        with without_graphs([graphs.pool for graphs in self.graphs.values()], "eager()"):
            yield

    def stats(self) -> dict[str, Any]:
        """Counters since the start: requests, and of each stage calls, graphs, eager calls by reason."""
        return {"requests": self._num_requests, **{name: g.stats() for name, g in self.graphs.items()}}

    def _program(self, request: Any) -> Program:
        """What a request needs; a face has requests of its own."""
        if not isinstance(request, Mapping):
            raise RequestError(f"a request is a mapping of inputs by name, not {request!r:.60}")
        inputs = _values(request)
        self._require_names(frozenset(inputs))
        self._num_requests += 1
        return (yield from self._ask(**inputs))

    def _require_names(self, names: frozenset[str]) -> None:
        """RequestError for inputs that the model does not take, or lacks. Most requests have the names of an
        earlier one, and binding them again took half of a short request's time on the host."""
        if names in self._taken:
            return
        try:
            self._signature.bind(**dict.fromkeys(names))
        except TypeError as error:
            raise RequestError(
                f"{error}: {self.source.name} takes {', '.join(self._signature.parameters)}"
            ) from error
        self._taken.add(names)

    def _forward(self, **inputs: Any) -> Program:
        """The program of a model that has none: floating-point inputs in the model's dtype, and its outputs
        by the names of the architecture, in order."""
        found = yield Call(FORWARD, *map(self._cast, self._signature.bind(**inputs).args))
        parts = found if isinstance(found, (list, tuple)) else [found]
        return dict(zip(self.source.outputs, parts, strict=True))

    def _cast(self, value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.dtype) if is_float else value

    def _in_a_step(self, name: str, batching: Batching | None) -> Callable[..., Any]:
        function = self.model if name == FORWARD else getattr(self.model, name)
        prepare = batching.prepare if isinstance(batching, Preparing) else None
        return in_a_step(function if prepare is None else lambda *args: function(*prepare(*args)))

    def _run(self, programs: Iterable[Program], errors: Errors) -> list[Any]:
        require_errors(errors)
        return self.engine.run(programs, raises=errors == "raise")


def _values(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value_of(value) for name, value in inputs.items()}
