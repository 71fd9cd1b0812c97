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

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from torch import Tensor, nn

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.loader.batches import pool_blocks, pool_rows
from fastkernels.nn.cache import cache_groups, cache_owners
from fastkernels.nn.routing import routers
from fastkernels.nn.ternary_weights import usual_scale
from fastkernels.records import REGISTRY, Batch, Case, DType, Provenance, Routing, Skew, TensorSpec, View
from fastkernels.registry.schema import Architecture, BatchEntry, ModelConfig, TaskEntry
from fastkernels.registry.walk import Load, TaskCall, Walk, signature_of

# Arguments that have an entry for each row of the step, so that the batch tells uses apart.
_OF_ROWS = {"step.seq_lens", "step.rows"}
# Arguments that say how the step's tokens fall into rows or images: the batch tells such uses apart too.
_OF_PACKING = {"step.query_starts", "step.grids", "step.begun"}
# Arguments that are pools of an engine: the judge sizes them by the case's batch.
_POOLS = ("cache", "state", "kept")
_ROWS = "rows."  # begins a number that is that of the rows of an argument
_DTYPES: dict[str, DType] = {name: name for name in get_args(DType)}
_SHORT: dict[DType, str] = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}


def build(load: Load) -> dict[str, list[Case]]:
    """All cases by task id. `load` imports a baseline task (`L1.rms_norm`)."""
    builder = _Builder(load)
    # A new architecture must not rename the cases of those that are there.
    for architecture in sorted(registry.architectures(), key=lambda a: (a.order is None, a.order, a.id)):
        builder.walk(architecture)
    for entry in registry.tasks():
        for extra in entry.extra_cases:
            provenance = Provenance(architecture=REGISTRY, config=extra.size, phase="held-out")
            builder.add(entry, Case(task=entry.id, provenance=provenance, **dict(extra)))
    return builder.cases


_Found = dict[str, tuple[TaskEntry, Case]]  # by the key of equal calls


@dataclass
class _Source:
    """Where the calls of a step come from."""

    architecture: str
    config_name: str
    config: ModelConfig
    batch_name: str
    batch: Batch
    held_out: bool
    routing: Routing | None  # of the model's routers
    mixes_windows: bool  # whether some layers attend over a window and others over all, or another one


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
            source = _Source(*facts, mixes_windows)
            calls = [call for call in model.step(step.run, source.batch) if _is_taken(call, step)]
            self._fold(calls, model.looks, source, found)

    def _fold(
        self, calls: list[TaskCall], looks: Callable[[TaskCall], Hashable], source: _Source, found: _Found
    ) -> None:
        count: Counter[str] = Counter()
        here: _Found = {}
        seen: dict[Hashable, str] = {}
        for call in calls:
            seen_as = looks(call)
            if seen_as not in seen:
                case = self._case(call, source)
                seen[seen_as] = _key(case, attends=_attends(call))
                here.setdefault(seen[seen_as], (call.task, case))
            count[seen[seen_as]] += 1
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

    def _case(self, call: TaskCall, source: _Source) -> Case:
        batch = _rows_of(call, source.batch)
        views = _views(call) if call.task.level <= 2 else {}
        inputs = {
            name: self._input(call, name, value, batch, views.get(name))
            for name, value in call.arguments.items()
        }
        specs = [value for value in inputs.values() if isinstance(value, TensorSpec)]
        is_model = call.task.level == 4
        # A model's inputs may have another dtype than the model: audio has, and so has a timestep.
        dtype = source.config.dtype if is_model else _dtype(call.module, specs) or source.config.dtype
        of_batch = ("step.", *_POOLS)
        uses_batch = is_model or bool(cache_owners(call.module))
        uses_batch |= any(_draw(i).startswith(of_batch) for i in inputs.values())
        routes = bool(routers(call.module)) or any(_draw(i).startswith("routing.") for i in inputs.values())
        routing = source.routing if routes else None
        config_name = source.config.cut_name or source.config_name if is_model else source.config_name
        phase = "held-out" if source.held_out else source.batch_name.partition("-")[0]
        provenance = Provenance(architecture=source.architecture, config=config_name, phase=phase)
        return Case(
            id=_id(call, source, config_name, dtype, inputs, routing),
            task=call.task.id,
            variant=call.variant,
            size=source.config.size,
            dtype=dtype,
            init=_cut(call.init, source.config) if is_model else call.init,
            inputs=inputs,
            batch=batch if uses_batch else None,
            routing=routing,
            provenance=provenance,
            timed=not source.held_out,
        )

    def _input(self, call: TaskCall, name: str, value: Any, batch: Batch, view: View | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape, dtype = tuple(value.shape), _DTYPES[str(value.dtype).removeprefix("torch.")]
        draw = call.task.draws.get(name)
        if draw is None:
            return TensorSpec(shape=shape, dtype=dtype, view=view)
        if draw.draw == "cache":
            shape = (pool_blocks(batch), *shape[1:])
        if draw.draw in ("state", "kept"):
            shape = (pool_rows(batch), *shape[1:])
        low, high = (_number(number, call) for number in (draw.low, draw.high))
        row = None if draw.row is None else int(_number(draw.row, call))
        return TensorSpec(shape=shape, dtype=dtype, draw=draw.draw, low=low, high=high, row=row, view=view)


def _told_apart(case: Case, known: Sequence[Case]) -> Case:
    """The case of one of several kinds of layers of a model, after the first init argument in which it
    differs from a case of its name: `...-head-size-512-bf16`."""
    for other in known:
        if other.id != case.id:
            continue
        for name, value in case.init.items():
            if value != other.init.get(name) and not isinstance(value, (dict, float)):
                what, values = name.replace("_", "-"), value if isinstance(value, list) else [value]
                kind = f"no-{what}" if value is None else f"{what}-{'x'.join(map(str, values))}"
                head, _, dtype = case.id.rpartition("-")
                return case.model_copy(update={"id": f"{head}-{kind}-{dtype}"})
    return case


def _views(call: TaskCall) -> dict[str, View]:
    """How the call's tensors lie, of those that are not packed and of those beside them.

    Left out are pools, what the call writes, and expanded tensors, whose rows would have to be drawn alike.
    """
    sharing: dict[int, dict[str, Tensor]] = {}
    for name, value in call.arguments.items():
        if isinstance(value, Tensor) and not _stays_packed(call.task, name, value):
            sharing.setdefault(value.untyped_storage()._cdata, {})[name] = value
    return {
        name: View(
            storage=next(iter(tensors)),
            size=value.untyped_storage().nbytes() // value.element_size(),
            strides=value.stride(),
            offset=int(value.storage_offset()),
        )
        for tensors in sharing.values()
        if not all(value.is_contiguous() for value in tensors.values())
        for name, value in tensors.items()
    }


def _stays_packed(task: TaskEntry, name: str, value: Tensor) -> bool:
    draw = task.draws.get(name)
    is_expanded = any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape))
    return is_expanded or name in task.mutates or (draw is not None and draw.draw in _POOLS)


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


def _dtype(module: nn.Module, inputs: Sequence[TensorSpec]) -> DType | None:
    """Of the module's parameters, and where it has none, of its first floating-point input. Scales of packed
    weights are wider than what they multiply."""
    have = dict(module.named_parameters())
    own = [value for name, value in have.items() if usual_scale(name, have) is None]
    found = [str(value.dtype).removeprefix("torch.") for value in own]
    return next((_DTYPES[n] for n in (*found, *(spec.dtype for spec in inputs)) if n in _SHORT), None)


def _is_taken(call: TaskCall, step: BatchEntry) -> bool:
    level = call.task.level
    return level in step.levels and (level > 1 or not step.of_rows or _attends(call))


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
    return _by_tokens(_first(case))[0]


def _by_tokens(spec: TensorSpec) -> tuple[int, ...]:
    """Its shape, with the tokens first: positions on several axes have them last."""
    return spec.shape[::-1] if spec.draw.startswith("step.positions") else spec.shape


def _first(case: Case) -> TensorSpec:
    return next(spec for spec in case.inputs.values() if isinstance(spec, TensorSpec))


def _routing(model: nn.Module, skew: Skew) -> Routing | None:
    """What all routers of the model do: a case has one."""
    found = {(router.top_k, router.num_experts) for _, router in routers(model)}
    if not found:
        return None
    (kind,) = found
    return Routing(top_k=kind[0], experts=kind[1], skew=skew)


def _attends(call: TaskCall) -> bool:
    """Whether the work depends on the rows of the step: the batch tells such calls apart."""
    draws = {draw.draw for name, draw in call.task.draws.items() if name in call.arguments}
    return bool(cache_owners(call.module)) or bool(draws & (_OF_ROWS | _OF_PACKING))


def _rows_of(call: TaskCall, batch: Batch) -> Batch:
    """The rows that a call sees: in a mixed step decode and prefill attention each get a part of them; of
    images in pixels, the positions of the map that it gets; of frames that are cut into windows, these."""
    if batch.images:
        images = batch.images[0]
        positions = next(x.shape[0] for x in call.arguments.values() if isinstance(x, Tensor)) // images
        return Batch(rows=((images, positions, positions),)) if _attends(call) else batch
    if windows := _windows(call, batch):
        each, more = divmod(batch.num_tokens, windows)
        runs = ((more, each + 1, each + 1), (windows - more, each, each))
        return Batch(rows=tuple(run for run in runs if run[0]), block_size=batch.block_size)
    for name, draw in call.task.draws.items():
        if draw.draw in _OF_ROWS and name in call.arguments:
            seen: Tensor = call.arguments[name]
            rows = list(zip(batch.query_lens, batch.seq_lens))[seen.storage_offset() :][: seen.shape[0]]
            runs = ((len(list(run)), *row) for row, run in itertools.groupby(rows))
            return Batch(rows=tuple(runs), block_size=batch.block_size)
    stores = any(draw.draw == "cache" for name, draw in call.task.draws.items() if name in call.arguments)
    return _without_context(batch) if stores and not _attends(call) else batch


def _windows(call: TaskCall, batch: Batch) -> int:
    """How many windows the call sees in the place of the batch's frames, which it has no grids of; 0: none.
    Its case has them about equally long: which of them are at an edge the call does not say."""
    starts = [
        call.arguments[name].shape[0] - 1
        for name, draw in call.task.draws.items()
        if draw.draw == "step.query_starts" and name in call.arguments
    ]
    is_cut = batch.grids and call.task.level < 4 and starts and starts[0] != len(batch.seq_lens)
    return starts[0] if is_cut else 0


def _without_context(batch: Batch) -> Batch:
    """The same query tokens at the same places of their blocks, in a pool as small as they need: nobody reads
    what is cached before them, and only small pools leave room for a chain of calls."""
    kept = [
        (count, query, query + ((seq - query - 1) % batch.block_size + 1 if seq > query else 0))
        for count, query, seq in batch.rows
    ]
    return Batch(rows=tuple(kept), block_size=batch.block_size)


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


def _id(
    call: TaskCall,
    source: _Source,
    config: str,
    dtype: DType,
    inputs: dict[str, Any],
    routing: Routing | None,
) -> str:
    """`llama-8b-T8192-D4096-residual-bf16`, `qkv-llama-8b-T2048-K4096-bf16`, `llama-8b-mixed-odd-bf16`."""
    shape = _by_tokens(next(spec for spec in inputs.values() if isinstance(spec, TensorSpec)))
    dims = "x".join(map(str, shape[1:]))
    label = call.task.label if isinstance(call.task.label, str) else call.task.label[call.variant]
    # A label without the dimensions leaves those between the first and the features to the tokens: T4x4096.
    tokens = shape[:1] if "{dims}" in label else shape[: max(1, len(shape) - 1)]
    counted = ("B" if source.batch.images else "T") + "x".join(map(str, tokens))
    parts = [
        "" if call.variant == "default" else call.variant,
        f"{source.architecture}-{config}",
        source.batch_name if _attends(call) else counted,
        label.format(dims=dims, **call.init),
        _window(call.init) if source.mixes_windows else "",
        "windows" if _windows(call, source.batch) else "",
        *_optional(call),
        routing.skew if routing and routing.skew != "uniform" and not _attends(call) else "",
        _SHORT[dtype],
    ]
    return "-".join(part for part in parts if part)


def _window(init: dict[str, Any]) -> str:
    """`W128`, of a module that attends over a window."""
    found = (value for name, value in init.items() if name.endswith("sliding_window") and value)
    return next((f"W{value}" for value in found), "")


def _optional(call: TaskCall) -> list[str]:
    """Tensors that the call gives and that forward may go without, less their shape: `residual`, `top_k`."""
    parameters = signature_of(type(call.module).forward).parameters
    given = [name for name, value in call.arguments.items() if isinstance(value, Tensor)]
    return [re.sub(r"_[A-Z0-9]+$", "", name) for name in given if "None" in str(parameters[name].annotation)]


def _draw(value: Any) -> str:
    return value.draw if isinstance(value, TensorSpec) else ""


def _number(number: float | str, call: TaskCall) -> float:
    """It, or the init argument that it names: `num_embeddings`, `config.vocab_size`. Of a list, as of tables
    that lie one behind the other, the sum. `rows.x`: the rows of argument x."""
    if not isinstance(number, str):
        return number
    if number.startswith(_ROWS):
        return call.arguments[number.removeprefix(_ROWS)].shape[0]
    value: Any = call.init
    for part in number.split("."):
        value = value[part]
    return sum(value) if isinstance(value, list) else value


def _cut(init: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The init arguments of a model case, with the configuration's cut applied."""
    return {
        name: _merged(value, config.cut) if value == config.config else value for name, value in init.items()
    }


def _merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration with changes to some keys, also of its sections."""
    sections = {key: config[key] for key, change in changes.items() if isinstance(change, dict)}
    return {**config, **changes, **{key: _merged(old, changes[key]) for key, old in sections.items()}}
