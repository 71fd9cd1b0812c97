"""From checkpoint names to parameters: a declarative map and a strict loader.

    WeightMap(
        names={"model.layers.*.mlp.down_proj.*": "layers.*.mlp.down_proj.linear.*"},
        packed={"layers.*.mlp.gate_up_proj.linear.*": {"model.layers.*.mlp.gate_proj.*": 14336,
                                                       "model.layers.*.mlp.up_proj.*": 14336}},
        ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
    )

`*` stands for one part of a dotted name and keeps its value on both sides. A packed parameter lists, first
rows first, the tensors that it consists of with their numbers of rows; a stack of matrices [E, N, K] counts
as E N rows. `spellings` are other names for whole parameters, packed or not: checkpoints that packed them
already, or that call them otherwise. A model carries its map as the attribute `weight_map`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest

import torch
from torch import Tensor, nn

from fastkernels.errors import WeightsError

MAX_REPORTED = 20
# Other element types are packed or quantised formats: cast to floats they would be wrong weights.
_PLAIN_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class WeightMap:
    """names, spellings: checkpoint tensor -> parameter; packed: parameter -> {checkpoint tensor: rows}."""

    names: Mapping[str, str] = field(default_factory=dict)
    packed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)

    def ignores(self, name: str) -> bool:
        return any(_match(pattern, name) is not None for pattern in self.ignored)

    def respelled(self, name: str) -> str | None:
        """The parameter that a checkpoint tensor fills whole under one of its other names."""
        for other, parameter in self.spellings.items():
            if (values := _match(other, name)) is not None:
                return _fill(parameter, values)
        return None

    def sources(self, parameter: str, rows: int) -> list[tuple[str, int, int]]:
        """(checkpoint name, first row, rows) of each tensor in a parameter; empty if the map lacks it."""
        for pattern, parts in self.packed.items():
            if (values := _match(pattern, parameter)) is not None:
                starts = [sum(islice(parts.values(), i)) for i in range(len(parts))]
                return [
                    (_fill(name, values), start, part) for (name, part), start in zip(parts.items(), starts)
                ]
        for name, pattern in self.names.items():
            if (values := _match(pattern, parameter)) is not None:
                return [(_fill(name, values), 0, rows)]
        return []


def destinations(model: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """Checkpoint name -> the view of a parameter that it fills; and the parameters that the map lacks.

    A shared (tied) parameter counts once, under its first name.
    """
    weight_map = _map_of(model)
    views: dict[str, Tensor] = {}
    unnamed = []
    for parameter, tensor in model.named_parameters():
        rows_RK = _rows(tensor)
        sources = weight_map.sources(parameter, len(rows_RK))
        if sum(rows for _, _, rows in sources) != len(rows_RK):
            unnamed.append(parameter)
            continue
        for name, start, rows in sources:
            # A tensor that is a whole parameter has its shape, also where that is a stack.
            views[name] = tensor.detach() if len(sources) == 1 else rows_RK[start : start + rows]
    return views, unnamed


def load_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy checkpoint tensors into the model's parameters, cast to their dtype.

    Raises one WeightsError for all that is missing, unexpected, given twice or of another shape; the model
    is then partly loaded and of no use.
    """
    weight_map = _map_of(model)
    views, unnamed = destinations(model)
    parameters = dict(model.named_parameters())
    missing = dict(views)
    unexpected, misshapen = [], []
    for name, tensor in weights:
        view, filled = views.get(name), [name]
        if view is None:
            parameter = weight_map.respelled(name)
            if parameter not in parameters:
                if not weight_map.ignores(name):
                    unexpected.append(f"unexpected  {name} {list(tensor.shape)}")
                continue
            view = parameters[parameter].detach()
            filled = [source for source, *_ in weight_map.sources(parameter, len(_rows(view)))]
        if any(missing.pop(source, None) is None for source in filled):
            unexpected.append(f"unexpected  {name} given twice")
        elif tensor.shape != view.shape:
            misshapen.append(f"misshapen   {name} {list(tensor.shape)}, expected {list(view.shape)}")
        elif tensor.dtype not in _PLAIN_DTYPES:
            misshapen.append(f"misshapen   {name} holds {tensor.dtype}: quantised weights cannot be loaded")
        else:
            view.copy_(tensor)
    absent = [f"missing     {name}, expected {list(view.shape)}" for name, view in missing.items()]
    absent += [f"missing     any checkpoint tensor for parameter {name}" for name in unnamed]
    if absent or unexpected or misshapen:
        raise WeightsError(_report(type(model).__name__, absent, unexpected, misshapen))


def export_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters as checkpoint tensors, the inverse of `load_weights`; they share the parameters' memory."""
    views, unnamed = destinations(model)
    if unnamed:
        raise WeightsError(
            f"{type(model).__name__}: no checkpoint name for {', '.join(unnamed[:MAX_REPORTED])}"
        )
    yield from views.items()


def _map_of(model: nn.Module) -> WeightMap:
    weight_map = getattr(model, "weight_map", None)
    if not isinstance(weight_map, WeightMap):
        raise TypeError(f"{type(model).__name__} has no attribute weight_map of type WeightMap")
    return weight_map


def _rows(parameter: Tensor) -> Tensor:
    """[rows, inputs] of a matrix or a stack of matrices; a vector is its own rows."""
    return parameter.detach().flatten(0, -2) if parameter.dim() > 2 else parameter.detach()


def _report(model: str, absent: list[str], unexpected: list[str], misshapen: list[str]) -> str:
    counts = f"{len(absent)} missing, {len(unexpected)} unexpected, {len(misshapen)} misshapen"
    # Turns, so that many of one kind do not hide another.
    turns = chain.from_iterable(zip_longest(absent, unexpected, misshapen))
    shown = sorted(islice((line for line in turns if line), MAX_REPORTED), key=lambda line: line.split()[0])
    left = len(absent) + len(unexpected) + len(misshapen) - len(shown)
    more = [f"and {left} more"] if left else []
    return "\n  ".join([f"The weights do not fit {model}: {counts}", *shown, *more])


def _match(pattern: str, name: str) -> list[str] | None:
    """The values of the stars if `name` fits, else None."""
    if "*" not in pattern:
        return [] if pattern == name else None
    found = re.fullmatch(re.escape(pattern).replace(r"\*", r"([^.]+)"), name)
    return None if found is None else list(found.groups())


def _fill(pattern: str, values: list[str]) -> str:
    pieces = pattern.split("*")
    return "".join(chain.from_iterable(zip_longest(pieces, values, fillvalue="")))
