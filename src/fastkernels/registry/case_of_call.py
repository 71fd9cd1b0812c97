"""The case of one call of a task: its inputs with their draws and views, its rows, and its name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor, nn

from fastkernels.loader.batches import pool_blocks, pool_rows
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.routing import routers
from fastkernels.nn.ternary_weights import usual_scale
from fastkernels.records import Batch, Case, DType, Provenance, Routing, TensorSpec, View
from fastkernels.registry.case_files import HELD_OUT, SHORT, by_tokens, case_id
from fastkernels.registry.schema import ModelConfig, TaskEntry
from fastkernels.registry.walk import TaskCall, signature_of

# Arguments that have an entry for each row of the step, so that the batch tells uses apart.
_OF_ROWS = {"step.seq_lens", "step.rows"}
# Arguments that say how the step's tokens fall into rows or images: the batch tells such uses apart too.
_OF_PACKING = {"step.query_starts", "step.grids", "step.begun"}
# Arguments that are pools of an engine: the judge sizes them by the case's batch.
_POOLS = ("cache", "state", "kept")
_PLACES = "clouds.places"  # of patches
_ROWS = "rows."  # begins a number that is that of the rows of an argument
_DTYPES: dict[str, DType] = {name: name for name in get_args(DType)}


@dataclass
class Origin:
    """Where the calls of a step come from."""

    architecture: str
    config_name: str
    config: ModelConfig
    batch_name: str
    batch: Batch
    held_out: bool
    routing: Routing | None  # of the model's routers
    mixes_windows: bool  # whether some layers attend over a window and others over all, or another one
    cuts_rows: bool  # whether layers attend within patches of the rows (cuts)


def case_of_call(call: TaskCall, origin: Origin) -> Case:
    """The case that a call of a task makes."""
    batch = _rows_of(call, origin)
    views = _views(call) if call.task.level <= 2 else {}
    inputs = {
        name: _input(call, name, value, batch, views.get(name)) for name, value in call.arguments.items()
    }
    specs = [value for value in inputs.values() if isinstance(value, TensorSpec)]
    is_model = call.task.level == 4
    # A model's inputs may have another dtype than the model: audio has, and so has a timestep.
    dtype = origin.config.dtype if is_model else _dtype(call.module, specs) or origin.config.dtype
    of_batch = ("step.", "clouds.batch", *_POOLS)
    uses_batch = is_model or bool(cache_owners(call.module))
    uses_batch |= any(_draw(i).startswith(of_batch) for i in inputs.values())
    routes = bool(routers(call.module)) or any(_draw(i).startswith("routing.") for i in inputs.values())
    routing = origin.routing if routes else None
    config_name = origin.config.cut_name or origin.config_name if is_model else origin.config_name
    phase = HELD_OUT if origin.held_out else origin.batch_name.partition("-")[0]
    provenance = Provenance(architecture=origin.architecture, config=config_name, phase=phase)
    return Case(
        id=case_id(call.variant, provenance, _called(call, origin, inputs, routing), dtype),
        task=call.task.id,
        variant=call.variant,
        size=origin.config.size,
        dtype=dtype,
        init=_cut(call.init, origin.config) if is_model else call.init,
        inputs=inputs,
        batch=batch if uses_batch else None,
        routing=routing,
        provenance=provenance,
        timed=not origin.held_out,
    )


def likeness(call: TaskCall) -> Hashable:
    """The same for calls of one step that make the same case, as those of equal layers do."""
    places: dict[int, int] = {}  # of a storage, among those of the call

    def look(value: Any) -> Hashable:
        if not isinstance(value, Tensor):
            return repr(value)
        storage = value.untyped_storage()
        place = places.setdefault(storage._cdata, len(places))
        return value.shape, value.dtype, value.stride(), value.storage_offset(), place, storage.nbytes()

    arguments = tuple((name, look(value)) for name, value in call.arguments.items())
    return call.task.id, call.variant, repr(call.init), arguments


def _input(call: TaskCall, name: str, value: Any, batch: Batch, view: View | None) -> Any:
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


def attends(call: TaskCall) -> bool:
    """Whether the work depends on the rows of the step: the batch tells such calls apart."""
    draws = {draw.draw for name, draw in call.task.draws.items() if name in call.arguments}
    return bool(cache_owners(call.module)) or bool(draws & (_OF_ROWS | _OF_PACKING))


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


def _dtype(module: nn.Module, inputs: Sequence[TensorSpec]) -> DType | None:
    """Of the module's parameters, and where it has none, of its first floating-point input. Scales of packed
    weights are wider than what they multiply."""
    have = dict(module.named_parameters())
    own = [value for name, value in have.items() if usual_scale(name, have) is None]
    found = [str(value.dtype).removeprefix("torch.") for value in own]
    return next((_DTYPES[n] for n in (*found, *(spec.dtype for spec in inputs)) if n in SHORT), None)


def cuts(task: TaskEntry) -> bool:
    """Whether it attends within patches of the batch's rows."""
    return any(draw.draw == _PLACES for draw in task.draws.values())


def _rows_of(call: TaskCall, origin: Origin) -> Batch:
    """The rows that a call sees: in a mixed step decode and prefill attention each get a part of them; of
    images in pixels, the positions of the map that it gets; of frames that are cut into windows, these."""
    batch = origin.batch
    if batch.images:
        images = batch.images[0]
        positions = next(x.shape[0] for x in call.arguments.values() if isinstance(x, Tensor)) // images
        return Batch(rows=((images, positions, positions),)) if attends(call) else batch
    if places := _patched(call, origin):
        return Batch(rows=_alike(*places), block_size=batch.block_size)
    if windows := _windows(call, batch):
        return Batch(rows=_alike(batch.num_tokens, windows), block_size=batch.block_size)
    for name, draw in call.task.draws.items():
        if draw.draw in _OF_ROWS and name in call.arguments:
            seen: Tensor = call.arguments[name]
            rows = list(zip(batch.query_lens, batch.seq_lens))[seen.storage_offset() :][: seen.shape[0]]
            runs = ((len(list(run)), *row) for row, run in itertools.groupby(rows))
            return Batch(rows=tuple(runs), block_size=batch.block_size)
    stores = any(draw.draw == "cache" for name, draw in call.task.draws.items() if name in call.arguments)
    return _without_context(batch) if stores and not attends(call) else batch


def _alike(tokens: int, rows: int) -> tuple[tuple[int, int, int], ...]:
    """Runs of rows that are about equally long."""
    each, more = divmod(tokens, rows)
    runs = ((more, each + 1, each + 1), (rows - more, each, each))
    return tuple(run for run in runs if run[0])


def _patched(call: TaskCall, origin: Origin) -> tuple[int, int] | None:
    """How many places in how many patches the call sees, where these are no rows of the batch: voxels of a
    cloud are fewer at each level of a model, and some of them are in two patches."""
    draws = {draw.draw: name for name, draw in call.task.draws.items() if name in call.arguments}
    if not origin.cuts_rows or call.task.level == 4 or "step.query_starts" not in draws:
        return None
    first = next(iter(call.arguments))
    places: Tensor = call.arguments[draws.get(_PLACES, first)]
    return places.shape[0], call.arguments[draws["step.query_starts"]].shape[0] - 1


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


def _called(call: TaskCall, origin: Origin, inputs: dict[str, Any], routing: Routing | None) -> str:
    """Its part of an id: `T8192-D4096-residual`, `T2048-K4096`, `mixed-odd`."""
    shape = by_tokens(next(spec for spec in inputs.values() if isinstance(spec, TensorSpec)))
    dims = "x".join(map(str, shape[1:]))
    label = call.task.label if isinstance(call.task.label, str) else call.task.label[call.variant]
    # A label without the dimensions leaves those between the first and the features to the tokens: T4x4096.
    tokens = shape[:1] if "{dims}" in label else shape[: max(1, len(shape) - 1)]
    counted = ("B" if origin.batch.images else "T") + "x".join(map(str, tokens))
    parts = [
        origin.batch_name if attends(call) and not _patched(call, origin) else counted,
        label.format(dims=dims, **call.init, **_counts(inputs)),
        _window(call.init) if origin.mixes_windows else "",
        "windows" if _windows(call, origin.batch) else "",
        *_optional(call),
        routing.skew if routing and routing.skew != "uniform" and not attends(call) else "",
    ]
    return "-".join(part for part in parts if part)


def _counts(inputs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, of a tensor its rows."""
    return {
        name: value.shape[0] if isinstance(value, TensorSpec) else value for name, value in inputs.items()
    }


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
