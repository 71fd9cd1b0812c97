"""Models with named outputs: our side of every comparison of them. Both sides begin with the same inputs on
the host, drawn as the judge draws them, and end with outputs on the device."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

from fastkernels import registry
from fastkernels.registry.workloads import ProgramWorkload
from references.base import Machine

SEED = 20


def requests(workload: ProgramWorkload, machine: Machine) -> list[dict[str, Any]]:
    """A batch, arrays as tensors."""
    from fastkernels.engine.media.arrays import value_of
    from fastkernels.runner.models.draws import Requests

    correctness = registry.architecture(machine.architecture).correctness
    assert correctness.kind == "program"
    drawn = Requests(correctness.inputs, machine.config, random.Random(SEED))
    batch = drawn.of(workload.shapes, workload.batch)
    return [{name: value_of(value) for name, value in request.items()} for request in batch]


class Ours:
    settings: ClassVar[tuple[str, ...]] = ("engine",)

    def __init__(self, machine: Machine) -> None:
        from fastkernels import Model, __version__

        self._machine, self.version = machine, __version__
        self._model = Model(
            machine.architecture, size=machine.size, device=machine.device, dtype=machine.dtype
        )

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        batch = requests(workload, self._machine)
        return lambda: len(self._model.run(batch))


def images(workload: ProgramWorkload, machine: Machine) -> list[Any]:
    """A batch, uint8 [H, W, 3] each."""
    return [request["image"] for request in requests(workload, machine)]


def on_device(batch: list[Any], device: str, dtype: Any) -> Any:
    """[B, H, W, C], sent as our engine sends images, and converted there."""
    import torch

    from fastkernels.nn.batching import sent, together

    return sent(together(batch, there := torch.device(device)), there).to(dtype)


def normalised(batch: list[Any], device: str, dtype: Any) -> Callable[[], Any]:
    """A call sends images or videos and normalises them by channel with our engine's operations, before the
    model as a user's transform does: [B, ..., H, W, C]."""
    import torch

    from fastkernels.nn.batching import IMAGENET, Pixels, sent, together
    from fastkernels.nn.program import Place

    there = torch.device(device)
    pixels = Pixels(1, batch[0].shape[-1], Place(there, dtype), IMAGENET)
    return lambda: pixels.prepare(sent(together(batch, there), there))[0]
