"""A checkpoint's tensors into a model's parameters, and back, by the model's map (weight_map.py). Strict: all
that does not fit is told in one error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from fastkernels.errors import WeightsError
from fastkernels.kernels.low_bit_dequant import GROUP
from fastkernels.nn.filters import as_stored
from fastkernels.nn.misfits import MAX_REPORTED, Misfits
from fastkernels.nn.partition import Part, part_of
from fastkernels.nn.weight_map import ZEROS, Source, WeightMap

# Other element types are packed or quantised formats: cast to floats they would be wrong weights.
_PLAIN_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Destination:
    """What a checkpoint tensor fills: views of parameters, first rows first, and the sources that it stands
    for. part: the places of the tensor that it fills, where the model is one rank's part."""

    def __init__(
        self, sources: Iterable[Source] = (), views: Iterable[Tensor] = (), part: Part | None = None
    ) -> None:
        self.sources, self._views, self.part = list(sources), list(views), part

    def add(self, source: Source, view: Tensor) -> None:
        """One more parameter that the tensor is split to."""
        at = sum(other.first < source.first for other in self.sources)
        self.sources.insert(at, source)
        self._views.insert(at, view)

    @property
    def shape(self) -> list[int]:
        """Of the checkpoint tensor."""
        if self.part is not None:
            return list(self.part.shape)
        rows = [_rows(view) for view in self._views]
        return list(self._views[0].shape) if len(rows) == 1 else [sum(map(len, rows)), *rows[0].shape[1:]]

    @property
    def is_packed(self) -> bool:
        """Whether it holds codes or scales of quantised weights."""
        return self._views[0].dtype == torch.uint8

    def refuses(self, dtype: torch.dtype) -> str | None:
        """Why a tensor of this dtype cannot fill it. Floats are cast; what is packed in integers is not."""
        own = self._views[0].dtype
        if own.is_floating_point:
            return None if dtype in _PLAIN_DTYPES else "quantised weights cannot be loaded"
        return None if dtype == own else f"the model keeps it as {own}"

    def fill(self, tensor: Tensor) -> None:
        if self.part is not None and not self.part.runs:
            self._views[0].zero_()
            return
        tensor = tensor[:] if self.part is None else self.part.of(tensor)
        if len(self._views) == 1:
            self._views[0].copy_(tensor)
            return
        rows = [_rows(view) for view in self._views]
        for view, part in zip(rows, tensor.split([len(view) for view in rows])):
            view.copy_(part)

    def holds(self, tensor: Tensor) -> bool:
        """Whether it was filled with the same values, as the parameter's dtype rounds them."""
        held = self.read()
        tensor = tensor[:] if self.part is None else self.part.of(tensor)
        return torch.equal(held, tensor.to(held))

    def read(self) -> Tensor:
        """The checkpoint tensor; it shares the parameter's memory unless it is split."""
        return self._views[0] if len(self._views) == 1 else torch.cat([_rows(view) for view in self._views])


def destinations(model: nn.Module) -> tuple[dict[str, Destination], list[str]]:
    """Checkpoint name -> what it fills; and the parameters that the map lacks.

    A shared (tied) parameter counts once, under its first name.
    """
    weight_map = _map_of(model)
    found: dict[str, Destination] = {}
    unnamed = []
    for parameter, tensor in model.named_parameters():
        if (part := part_of(tensor)) is not None:
            _add_parts(found, unnamed, parameter, tensor.detach(), part, weight_map)
            continue
        rows_RK = _rows(tensor)
        sources = weight_map.sources(parameter, len(rows_RK))
        if sum(source.rows for source in sources) != len(rows_RK):
            unnamed.append(parameter)
            continue
        # A tensor that is a whole parameter has its shape, also where that is a stack.
        parts = rows_RK.split([source.rows for source in sources]) if len(sources) > 1 else [tensor.detach()]
        for source, view in zip(sources, (weight_map.stored(parameter, part) for part in parts)):
            if source.name == ZEROS:
                continue
            found.setdefault(source.name, Destination()).add(source, view)
    return found, unnamed


def _add_parts(
    found: dict[str, Destination],
    unnamed: list[str],
    name: str,
    parameter: Tensor,
    part: Part,
    weight_map: WeightMap,
) -> None:
    """The tensors of a parameter of which the model has a part; also those of which it has nothing."""
    rows = part.rows() if len(part.shape) > 1 else part
    sources = weight_map.sources(name, rows.shape[0])
    if sum(source.rows for source in sources) != rows.shape[0]:
        unnamed.append(name)
        return
    if len(sources) == 1 or not part.runs:
        found |= {source.name: Destination([source], [parameter], part) for source in sources}
        return
    first, place, rows_RK = 0, 0, _rows(parameter)
    for source in sources:
        own = rows.within(first, source.rows)
        count = source.rows if own.dim else own.length
        found[source.name] = Destination([source], [rows_RK[place : place + count]], own)
        first, place = first + source.rows, place + count


def load_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy checkpoint tensors into the model's parameters, cast to their dtype. What has a shape, a dtype and
    gives slices stands for a tensor too, of which a rank's part reads its own.

    Raises one WeightsError for all that is missing, unexpected, given twice, of another shape, or unlike the
    tensor that it should repeat; the model is then partly loaded and of no use.
    """
    weight_map = _map_of(model)
    places, unnamed = destinations(model)
    parameters = dict(model.named_parameters())
    missing = {source: name for name, place in places.items() for source in place.sources}
    misfits = Misfits()
    repeats: list[tuple[str, Tensor, Destination]] = []
    for name, tensor in weight_map.folding.fold(weights, misfits) if weight_map.folding else weights:
        place = next((places[found] for found in weight_map.spelled(name) if found in places), None)
        place = place or _whole(name, parameters, weight_map)
        if place is None:
            first = next(filter(None, map(weight_map.repeated.get, weight_map.spelled(name))), None)
            if first in places:
                repeats.append((name, tensor, places[first]))
            elif not any(map(weight_map.ignores, weight_map.spelled(name))):
                misfits.unexpected.append(f"unexpected  {name} {list(tensor.shape)}")
            continue
        if None in [missing.pop(source, None) for source in place.sources]:
            misfits.unexpected.append(f"unexpected  {name} given twice")
        elif _fits(name, tensor, place, misfits):
            place.fill(tensor)
    for name, tensor, place in repeats:
        if not _fits(name, tensor, place, misfits):
            continue
        if None not in [missing.pop(source, None) for source in place.sources]:
            place.fill(tensor)  # the checkpoint has it under this name alone
        elif not place.holds(tensor):
            misfits.contradicts(name, place.sources[0].name)
    for rows in () if unnamed else _zero_rows(model):
        rows.zero_()
    for name in dict.fromkeys(missing.values()):
        misfits.lacks(name, places[name].shape, weight_map.repeated.get(name))
    misfits.missing += [f"missing     any checkpoint tensor for parameter {name}" for name in unnamed]
    misfits.check(type(model).__name__)


def _fits(name: str, tensor: Tensor, place: Destination, misfits: Misfits) -> bool:
    """Whether the tensor can fill the place; if not, `misfits` says why."""
    if list(tensor.shape) != place.shape:
        misfits.has_wrong_shape(name, tensor.shape, place.shape, _other_groups(tensor, place))
    elif problem := place.refuses(tensor.dtype):
        misfits.misshapen.append(f"misshapen   {name} holds {tensor.dtype}: {problem}")
    else:
        return True
    return False


def _other_groups(tensor: Tensor, place: Destination) -> str:
    """What to say of scales [E, N, G], or codes [E, N, G, 16], in groups of another size."""
    rows = place.shape[:2]
    is_stack = place.is_packed and tensor.dim() == len(place.shape) > len(rows)
    if not is_stack or list(tensor.shape[: len(rows)]) != rows:
        return ""
    groups, expected = tensor.shape[len(rows)], place.shape[len(rows)]
    each = GROUP * expected / max(1, groups)
    return (
        f"; it has a scale for every {each:g} weights, MXFP4 one for every {GROUP}" if each != GROUP else ""
    )


def export_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters as checkpoint tensors, the inverse of `load_weights`; all but split ones share the
    parameters' memory. What was folded stays folded: `load_weights` takes that too."""
    places, unnamed = destinations(model)
    if unnamed:
        raise WeightsError(
            f"{type(model).__name__}: no checkpoint name for {', '.join(unnamed[:MAX_REPORTED])}"
        )
    for name, place in places.items():
        yield name, place.read()


def _whole(theirs: str, parameters: Mapping[str, Tensor], weight_map: WeightMap) -> Destination | None:
    """A parameter as one tensor of another name fills it, which stands for all its sources."""
    name = weight_map.respelled(theirs)
    if name is None or name not in parameters:
        return None
    part, parameter = part_of(parameters[name]), parameters[name].detach()
    rows = len(_rows(parameter)) if part is None else part.rows().shape[0]
    sources = weight_map.sources(name, rows)
    is_transposed = weight_map.transposes(theirs)
    assert part is None or not is_transposed, f"{name}: a rank's part of a tensor that lies transposed"
    view = parameter.mT if is_transposed else as_stored(parameter)
    return Destination((source for source in sources if source.name != ZEROS), [view], part)


def _zero_rows(model: nn.Module) -> Iterator[Tensor]:
    """Rows of packed parameters that no checkpoint tensor fills."""
    weight_map = _map_of(model)
    for name, tensor in model.named_parameters():
        rows_RK = _rows(tensor)
        sources = weight_map.sources(name, len(rows_RK))
        if any(source.name == ZEROS for source in sources):
            views = rows_RK.split([source.rows for source in sources])
            yield from (view for source, view in zip(sources, views) if source.name == ZEROS)


def _map_of(model: nn.Module) -> WeightMap:
    weight_map = getattr(model, "weight_map", None)
    if not isinstance(weight_map, WeightMap):
        raise TypeError(f"{type(model).__name__} has no attribute weight_map of type WeightMap")
    return weight_map


def _rows(parameter: Tensor) -> Tensor:
    """[rows, inputs] of a matrix or a stack of matrices; a vector is its own rows, and so are depthwise
    filters over time [C, 1, K]."""
    is_stack = parameter.dim() > 2 and parameter.shape[1:-1] != (1,)
    return parameter.detach().flatten(0, -2) if is_stack else parameter.detach()
