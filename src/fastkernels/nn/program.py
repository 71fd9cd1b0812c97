"""What a model is asked: a program, a generator that yields calls of stages and returns named outputs.

    def stages(self):                      return {"encode": Stage(Packed(8, 3, self.place))}
    def program(self, image, scale):       features = yield Call("encode", image)
                                           return {"features": scale * features}
    def finish(self, outputs, **request):  return {"map": (yield Call("decode", outputs["features"]))}

`finish` makes what is not timed, where a model has such a part. A stage is a method or a part of the model:
calls that fit together are one launch, replayed as a CUDA graph where one was captured, so it must not read
its tensors on the host. A model without `stages` has one, `forward`; the program of a model without `program`
is one call of it with the request's inputs. `self.place` is set by whoever runs programs.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from fastkernels.errors import RequestError as RequestError  # what a program raises for what it cannot serve

Program = Generator[Any, Any, Any]


class Call:
    """One call of a stage; with `loop`, its first argument is replaced by the result that many times."""

    __slots__ = ("args", "loop", "stage")

    def __init__(self, stage: str, *args: Any, loop: int = 1) -> None:
        self.stage, self.args, self.loop = stage, args, loop


class Place(NamedTuple):
    """Where a model runs, and the dtype of its parameters."""

    device: torch.device
    dtype: torch.dtype


class Batching(Protocol):
    """How requests become one launch; batching.py has the usual ones, and a task file may bring its own."""

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """What must be equal for two calls to share a launch; a RequestError refuses a call."""
        ...

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The arguments of one launch for the calls' arguments, all of one key. Tensors may lie on the host,
        alone or in a batching.Crossing: the launch sends them."""
        ...


@runtime_checkable
class Dividing(Batching, Protocol):
    """A batching of calls whose results differ in size."""

    def divide(self, result: Any, calls: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """Each call's share of what the launch returned; of other batchings its entry of every tensor."""
        ...


@runtime_checkable
class Reading(Batching, Protocol):
    """A batching that reads a call's arguments once."""

    def read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the other methods get in their place; a RequestError refuses the call."""
        ...


@runtime_checkable
class Preparing(Batching, Protocol):
    """A batching that has work for the device before the stage: it is captured with the stage."""

    def prepare(self, *args: Any) -> Sequence[Any]:
        """The stage's arguments, for what `join` returned."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """batching: None stacks the arguments on the device; most: calls of one launch."""

    batching: Batching | None = None
    most: int = 64
