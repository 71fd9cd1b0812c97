"""Write registry/cases: walk every configuration over its steps, and fold equal calls to one case.

Two calls are equal when variant, init arguments, input shapes and dtypes are; for a task that attends, also
the batch; where tokens choose experts, also how. The first to make a call owns the case: architectures by
their `order` of addition, the scored model before its siblings, timed steps before held-out ones. Its inputs
have the views of the first equal call that hands over views: a case is checked packed as well.

Of an architecture's calls that differ in their sizes alone, at most four are cases: three timed ones, one of
a thin task, and one held-out.
`scripts/build_cases.py` runs this; a test runs it again and compares with the committed files.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import nn

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.nn.cache import cache_groups
from fastkernels.nn.routing import routers
from fastkernels.records import REGISTRY, Case, Provenance, Routing, Skew, TensorSpec
from fastkernels.registry.case_files import HELD_OUT, by_tokens
from fastkernels.registry.case_of_call import Origin, attends, case_of_call, cuts, likeness
from fastkernels.registry.schema import Architecture, BatchEntry, ModelConfig, TaskEntry
from fastkernels.registry.walk import Load, TaskCall, Walk


def build(load: Load) -> dict[str, list[Case]]:
    """All cases by task id. `load` imports a baseline task (`L1.rms_norm`)."""
    builder = _Builder(load)
    # A new architecture must not rename the cases of those that are there.
    for architecture in sorted(registry.architectures(), key=lambda a: (a.order is None, a.order, a.id)):
        builder.walk(architecture)
    for entry in registry.tasks():
        for extra in entry.extra_cases:
            provenance = Provenance(architecture=REGISTRY, config=extra.size, phase=HELD_OUT)
            builder.add(entry, Case(task=entry.id, provenance=provenance, **dict(extra)))
    return builder.cases


_Found = dict[str, tuple[TaskEntry, Case]]  # by the key of equal calls


@dataclass
class _Builder:
    load: Load
    cases: dict[str, list[Case]] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)  # of the case of a key, among those of its task

    def walk(self, architecture: Architecture) -> None:
        """Add the architecture's cases that none before it has."""
        found: _Found = {}
        for name, config in architecture.configs.items():
            if config.walk:
                self._walk(architecture, name, config, found)
        kept = _within_budget(found)
        for key, (entry, case) in found.items():
            if key not in kept:
                continue
            if key not in self._places:
                self._places[key] = len(self.cases.get(entry.id, ()))
                self.add(entry, _told_apart(case, self.cases.get(entry.id, ())))
            else:
                known, place = self.cases[entry.id], self._places[key]
                known[place] = _with_views(known[place], case)

    def _walk(self, architecture: Architecture, name: str, config: ModelConfig, found: _Found) -> None:
        model_task = registry.task(architecture.task)
        model = Walk(self.load, registry.tasks(), model_task, config.config, config.dtype)
        steps = registry.batches(architecture, config)
        mixes_windows = len({paged.window for paged in cache_groups(model.model)}) > 1
        for batch_name, step in sorted(steps, key=lambda named: named[1].held_out):
            routing = _routing(model.model, step.routing)
            facts = (architecture.id, name, config, batch_name, step.batch, step.held_out, routing)
            calls = model.step(step.run, step.batch)
            origin = Origin(*facts, mixes_windows, any(cuts(call.task) for call in calls))
            self._fold(calls, step, origin, found)

    def _fold(self, calls: list[TaskCall], step: BatchEntry, origin: Origin, found: _Found) -> None:
        layers: dict[Hashable, list[TaskCall]] = {}  # calls of one kind: a model has many equal layers
        for call in calls:
            layers.setdefault(likeness(call), []).append(call)
        count: Counter[str] = Counter()
        here: _Found = {}
        for call, *others in layers.values():
            if not _is_taken(call, step):
                continue
            case = case_of_call(call, origin)
            key = _key(case, attends=attends(call))
            here.setdefault(key, (call.task, case))
            count[key] += 1 + len(others)
        for key, (entry, case) in here.items():
            if key in found:
                found[key] = (entry, _with_views(found[key][1], case))
            else:
                found[key] = (entry, case.model_copy(update={"calls": count[key]}))

    def add(self, entry: TaskEntry, case: Case) -> None:
        known = self.cases.setdefault(entry.id, [])
        if any(case.id == other.id for other in known):
            raise UsageError(
                f"{entry.id}: two different cases are called {case.id}; its `label` must tell them apart"
            )
        known.append(case)


def _told_apart(case: Case, known: Sequence[Case]) -> Case:
    """The case of one of several kinds of layers of a model, after the first init argument in which it
    differs from a case of its name: `...-head-size-512-bf16`; else after the last dimension of its first
    tensor, or all but the first, which a label may lack: `...-last-4-f32`, `...-20x64-f32`."""
    for other in known:
        if other.id != case.id:
            continue
        head, _, dtype = case.id.rpartition("-")
        for name, value in case.init.items():
            if value != other.init.get(name) and not isinstance(value, (dict, float)):
                what, values = name.replace("_", "-"), value if isinstance(value, list) else [value]
                kind = f"no-{what}" if value is None else f"{what}-{'x'.join(map(str, values))}"
                return case.model_copy(update={"id": f"{head}-{kind}-{dtype}"})
        shape, of_other = (_first(one).shape for one in (case, other))
        if shape[-1] != of_other[-1]:
            return case.model_copy(update={"id": f"{head}-last-{shape[-1]}-{dtype}"})
        if shape[1:] != of_other[1:]:
            return case.model_copy(update={"id": f"{head}-{'x'.join(map(str, shape[1:]))}-{dtype}"})
    return case


def _has_views(case: Case) -> bool:
    return any(isinstance(spec, TensorSpec) and spec.view for spec in case.inputs.values())


def _with_views(case: Case, other: Case) -> Case:
    """The case with the views of another one that is equal to it, where it has none of its own."""
    if _has_views(case) or not _has_views(other):
        return case
    inputs = dict(case.inputs)
    for name, spec in other.inputs.items():
        mine = inputs[name]
        if isinstance(spec, TensorSpec) and isinstance(mine, TensorSpec):
            inputs[name] = mine.model_copy(update={"view": spec.view})
    return case.model_copy(update={"inputs": inputs})


def _is_taken(call: TaskCall, step: BatchEntry) -> bool:
    level = call.task.level
    return level in step.levels and (level > 1 or not step.of_rows or attends(call))


def _within_budget(found: _Found) -> set[str]:
    """The keys of the calls that become cases: of those that differ in their sizes alone the largest, the
    middle one and the smallest, of a thin task the middle one, and the largest held-out one. Beside a call of
    a lone token the next larger one stays, because requests are decoded alone and in batches."""
    alike: dict[str, list[str]] = {}
    for key, (_, case) in found.items():
        alike.setdefault(_apart_from_size(case), []).append(key)
    kept: set[str] = set()
    for keys in alike.values():
        by_size = sorted(keys, key=lambda key: _size(found[key][1]))
        timed = [key for key in by_size if found[key][1].timed]
        held_out = [key for key in by_size if not found[key][1].timed]
        middle = timed[len(timed) // 2 :][:1]
        if not found[keys[0]][0].thin:
            smallest = 2 if any(_tokens(found[key][1]) == 1 for key in timed[:1]) else 1
            middle += [*timed[:smallest], *timed[-1:]]
        kept.update(middle, held_out[-1:])
    return kept


def _apart_from_size(case: Case) -> str:
    """What calls of one configuration have in common that differ in tokens, rows or images alone."""
    inputs = {
        name: (len(value.shape), value.shape[1:][-1:], value.dtype)
        if isinstance(value, TensorSpec)
        else value is None
        for name, value in case.inputs.items()
    }
    skew = case.routing.skew if case.routing else None
    return repr((case.task, case.variant, case.provenance.config, case.dtype, case.init, inputs, skew))


def _size(case: Case) -> tuple[int, int]:
    """Elements of the first tensor, and tokens of the rows with their context."""
    return math.prod(_first(case).shape), sum(case.batch.seq_lens) if case.batch else 0


def _tokens(case: Case) -> int:
    return by_tokens(_first(case))[0]


def _first(case: Case) -> TensorSpec:
    return next(spec for spec in case.inputs.values() if isinstance(spec, TensorSpec))


def _routing(model: nn.Module, skew: Skew) -> Routing | None:
    """What all routers of the model do: a case has one."""
    found = {(router.top_k, router.num_experts) for _, router in routers(model)}
    if not found:
        return None
    (kind,) = found
    return Routing(top_k=kind[0], experts=kind[1], skew=skew)


def _key(case: Case, attends: bool) -> str:
    kept = case.model_dump(
        mode="json", include={"task", "variant", "size", "dtype", "init", "inputs", "batch", "routing"}
    )
    tensors = [spec for spec in kept["inputs"].values() if isinstance(spec, dict)]
    for spec in tensors:
        del spec["view"]
    if not attends:
        kept["batch"] = None
        for spec in tensors:
            if spec["draw"] == "cache":
                spec["shape"][0] = None
    return json.dumps(kept, sort_keys=True)
