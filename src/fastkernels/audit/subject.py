"""One case under audit: draws of inputs, and the baseline's module run on them with or without a change.

subject = Subject(entry, case, "cpu")
draw = subject.draw("normal", seed=0)       inputs and right outputs; those of the call before
subject.run(draw, change)                   what the baseline returns with one mistake in it
subject.exact(draw, change)                 the same mistake in float64, where only mathematics is left
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.audit.replay import Replay, blocks
from fastkernels.judge.oracle import Oracle
from fastkernels.loader.inputs import cast, draw, trial_specs
from fastkernels.loader.materialize import mutable_names
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Case, TensorSpec
from fastkernels.registry.schema import TaskEntry

Outputs = Mapping[str, Tensor]
Kind = Literal["trivial", "input", "mutant"]


@dataclass(frozen=True, slots=True)
class Draw:
    """One call and the one before it. Mutated tensors have their values from before the call in `inputs`."""

    distribution: str
    inputs: Mapping[str, Tensor]
    right: Outputs  # the baseline's outputs
    before: Mapping[str, Tensor]
    previous: Outputs  # the baseline's outputs of the call before

    def wide(self, exact: Outputs, exact_previous: Outputs) -> Draw:
        """The same draw in float64; parameters become that in a module of float64."""
        return Draw(self.distribution, dict(_Wide(self.inputs)), exact, _Wide(self.before), exact_previous)


@dataclass(frozen=True)
class _Wide(Mapping[str, Tensor]):
    """Made as they are asked for: of the call before, mistakes read one at a time."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        found = self.tensors[name]
        return found if name.startswith("param.") else cast({name: found}, torch.float64)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


@dataclass(frozen=True)
class Change:
    """One way to be wrong. What is None stays as the baseline has it."""

    kind: Kind
    name: str
    tensors: Callable[[Draw], Mapping[str, Tensor]] | None = None  # in place of some of the call's tensors
    around: Callable[[nn.Module], AbstractContextManager[object]] | None = None  # while the module runs
    outputs: Callable[[Draw, Outputs], Outputs] | None = None  # in place of some of the outputs
    raised: tuple[str, ...] = ()  # bounds of lengths, which the host must know one higher
    implementation: str | None = None  # None: the baseline's choice
    part_of: str | None = None  # the part in which the mistake is, its task or which; None: the case's own
    unused_part: str | None = None  # the task of the part that has this parameter, if forward never calls it
    within: str = ""  # the submodule that alone is changed; "": the module, or what it is given
    larger: Change | None = None  # more of the same mistake, as a kernel would make it
    is_rounding: bool = False  # the same mathematics in fewer bits: where that costs nothing, no mistake

    @property
    def runs(self) -> bool:
        """Whether the module has to be run: without, only its right outputs are changed."""
        return self.tensors is not None or self.around is not None


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A way to be wrong that this case has no place for."""

    kind: Kind
    name: str
    reason: str


RIGHT = Change("mutant", "none", around=lambda module: contextlib.nullcontext())


@dataclass
class Subject:
    entry: TaskEntry
    case: Case
    device: str

    def __post_init__(self) -> None:
        overlay = Overlay.over_baseline()
        self.overlay = overlay
        self.oracle = Oracle(self.case, overlay, self.device)
        self.module = self.oracle.resident(None).module
        self.specs = trial_specs(self.case, self.module)
        self.mutable = mutable_names(self.entry.mutates, self.specs)
        self.caches = [name for name, spec in self.specs.items() if spec.draw == "cache"]
        self.states = [name for name, spec in self.specs.items() if spec.draw == "state"]

    @property
    def changeable(self) -> dict[str, TensorSpec]:
        """What may matter: a step's rows say where states lie, and without any they say nothing."""
        return {name: spec for name, spec in self.specs.items() if self.states or name != "step.rows"}

    def part(self, which: str) -> str | None:
        """`part_of` of a mistake in that part of the module; a single operation has none."""
        return which if self.entry.has_parts else None

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.case.dtype)

    def draw(self, distribution: str, seed: int) -> Draw:
        inputs, before = (
            draw(self.specs, self.case, number, distribution, self.device) for number in (seed, seed + 1)
        )
        return Draw(distribution, inputs, self._invoke(inputs, RIGHT), before, self._invoke(before, RIGHT))

    def run(self, draw: Draw, change: Change) -> Outputs:
        """The outputs and mutated arguments of the baseline with `change`; `draw` stays as it is."""
        return self._changed(draw, change)

    def exact(self, draw: Draw, change: Change, replay: Replay | None = None) -> Outputs:
        """The same in float64 and plain PyTorch; `draw` is a wide one, `replay` of the oracle's run on it."""
        known = replay.before(change.within) if replay else contextlib.nullcontext()
        with kernels.use("reference"), known:
            return self._changed(draw, change, torch.float64)

    def replay(self) -> Replay:
        """Of the module in float64. What a call changes in place, a block that is left out does not write."""
        module = self.oracle.resident(torch.float64).module
        return Replay(module, () if self.mutable else blocks(module))

    def _changed(self, draw: Draw, change: Change, dtype: torch.dtype | None = None) -> Outputs:
        outputs = draw.right
        if change.runs:
            given = change.tensors(draw) if change.tensors else {}
            outputs = self._invoke({**draw.inputs, **given}, change, dtype)
        return {**outputs, **change.outputs(draw, outputs)} if change.outputs else outputs

    def _invoke(
        self, tensors: Mapping[str, Tensor], change: Change, dtype: torch.dtype | None = None
    ) -> Outputs:
        own = {name: tensor.clone() if name in self.mutable else tensor for name, tensor in tensors.items()}
        resident = self.oracle.resident(dtype)  # the oracle's own: of a large model two would find no room
        call = resident.bound(self._raised(change.raised), own)
        if call.step is not None:
            bounds = {
                name: getattr(call.step, name) + 1 for name in change.raised if hasattr(call.step, name)
            }
            call = dataclasses.replace(call, step=dataclasses.replace(call.step, **bounds))
        forced = kernels.use(change.implementation) if change.implementation else contextlib.nullcontext()
        with forced, change.around(resident.module) if change.around else contextlib.nullcontext():
            return {name: output.detach() for name, output in call.invoke().items()}

    def _raised(self, bounds: tuple[str, ...]) -> Case:
        """The case with these of its arguments one higher."""
        inputs = self.case.inputs
        raised = {name: inputs[name] + 1 for name in bounds if name in inputs}  # type: ignore[operator]
        return self.case.model_copy(update={"inputs": {**inputs, **raised}}) if raised else self.case
