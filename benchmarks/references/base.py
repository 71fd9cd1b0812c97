"""A comparison with a reference library: its workloads, and what each side must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from fastkernels import registry
from fastkernels.records import Size
from fastkernels.registry.workloads import Workload


@dataclass(frozen=True)
class Machine:
    """Where a side runs, and which configuration: both sides get the same.

    changes: keys of the full configuration with other values (Comparison). memory: share of the GPU's that
    an engine may take.
    """

    architecture: str
    size: Size
    device: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    memory: float = 0.9

    @property
    def config(self) -> dict[str, Any]:
        entry = registry.architecture(self.architecture)
        return entry.configs[entry.default_config[self.size]].config | self.changes

    @property
    def dtype(self) -> str:
        """float32 on a CPU, as our engine chooses there."""
        entry = registry.architecture(self.architecture)
        return "float32" if self.device == "cpu" else entry.configs[entry.default_config[self.size]].dtype

    def creating(self) -> AbstractContextManager[None]:
        """Parameters of the body are created where they run and in their dtype."""
        import torch

        from fastkernels.creation import creating

        return creating(self.device, getattr(torch, self.dtype))

    def filled(self, make: Callable[[], Any]) -> Any:
        """The model that `make` creates, here and in our dtype, with our random weights."""
        from fastkernels.nn.random_weights import random_weights

        with self.creating():
            model = make()
        random_weights(model, seed=0)
        return model.eval().requires_grad_(False)

    def wait(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()


class Side(Protocol):
    """One engine with its weights."""

    version: str
    settings: ClassVar[tuple[str, ...]]  # ways to run it, the one that a user gets first

    def prepare(self, workload: Any, setting: str) -> Callable[[], int]:
        """The workload as a call that does all of it, and returns how many items (tokens, images) it made.
        The same number on both sides; work may still be under way on the device."""
        ...


@dataclass(frozen=True)
class Comparison:
    """bars: by workload, the least ratio to the reference's fastest setting that the project asks for;
    default_bars: to its first setting, which a user gets. changes: of a model that is too large for one GPU,
    keys of its full configuration with other values, fewer layers for example; the report has them."""

    architecture: str
    reference: str
    ours: Callable[[Machine], Side]
    theirs: Callable[[Machine], Side]
    workloads: Callable[[Size], Mapping[str, Any]]
    bars: Mapping[str, float] = field(default_factory=dict)
    default_bars: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)

    def machine(self, size: Size, device: str, memory: float = 0.9) -> Machine:
        return Machine(self.architecture, size, device, self.changes if size == "full" else {}, memory)


def one_batch(architecture: str, size: Size) -> dict[str, Workload]:
    """The workloads of `fk eval`, each cut to one batch: a run is repeated here, not prolonged."""
    chosen = registry.architecture(architecture).workloads
    known = {workload.name: workload for workload in registry.workloads(size=size)}
    return {name: known[name].model_copy(update={"requests": known[name].batch}) for name in chosen}
