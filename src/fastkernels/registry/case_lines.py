"""Write `registry/cases/L*/*.jsonl` as case_files.py reads them: each line says what its form does not.

A form of a file has what the first case of its variant says in each place: a new architecture leaves it as it
is. Below a heading a form has what most cases say there, where that makes the text shorter.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fastkernels.errors import UsageError
from fastkernels.records import REGISTRY, Batch, Case, TensorSpec
from fastkernels.registry.case_files import (
    HELD_OUT,
    OWN,
    Line,
    by_tokens,
    call_name,
    case_id,
    reshaped,
    tokens_of,
)
from fastkernels.registry.schema import TaskEntry

Place = tuple[str, ...]  # where a line says something: ("calls",), ("init", "bias")
Says = dict[Place, str]  # what it says there, as JSON: 1, 1.0 and true are not the same
Axis = tuple[str, int, int]  # of an input with so many axes, the axis

_NOTHING = ""
_EACH_ITS_OWN = (("T",), ("timed",))  # never of a form
_DEFAULTS: Says = {
    ("batch",): "null",
    ("routing",): "null",
    ("calls",): "1",
    ("ranks",): "1",
}


@dataclass
class _Row:
    case: Case
    called: str  # its id, less who makes the call and the dtype
    says: Says


def render(entry: TaskEntry, cases: Sequence[Case]) -> str:
    """The text of the file of a task's cases."""
    names = {
        variant: _names([case for case in cases if case.variant == variant]) for variant in entry.variants
    }
    rows = [_row(entry, case, names[case.variant]) for case in cases]
    of_file = {variant: _form(own) for variant, own in _by_variant(rows).items()}
    lines = [_line({"form": v}, form, _DEFAULTS) for v, form in of_file.items() if form != _DEFAULTS]
    for heading, block in groupby(rows, lambda row: _heading(row.case)):
        below = list(block)
        forms = {v: _changed(of_file[v], own) for v, own in _by_variant(below).items()}
        changes = [_line({"form": v}, form, of_file[v]) for v, form in forms.items() if form != of_file[v]]
        for phase, step in groupby(below, lambda row: row.case.provenance.phase):
            lines += [heading | {"phase": phase}, *changes, *(_case(row, forms) for row in step)]
            heading, changes = {}, []
    return "".join(f"{_text(line)}\n" for line in lines)


def _by_variant(rows: Sequence[_Row]) -> dict[str, list[_Row]]:
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.case.variant, []).append(row)
    return found


def _heading(case: Case) -> dict[str, str]:
    by = case.provenance
    return {"architecture": by.architecture, "config": by.config, "size": case.size, "dtype": case.dtype}


# ---------------------------------------------------------------- forms


def _form(rows: Sequence[_Row]) -> Says:
    """In each place what the first case says that says something there."""
    found: Says = {}
    for place in _places([row.says for row in rows]):
        if place not in _DEFAULTS and (votes := _votes(place, rows)):
            found[place] = next(iter(votes))
    return found | _DEFAULTS


def _changed(form: Says, rows: Sequence[_Row]) -> Says:
    """The form with what most cases below a heading say, where that makes the text shorter."""
    changes: Says = {}
    saved = -len('{"form":"default"}')
    for place in _places([form]):
        votes = _votes(place, rows)
        votes[_NOTHING] = sum(place not in row.says for row in rows)
        best, count = votes.most_common(1)[0]
        if (fewer := count - votes[form[place]] - 1) > 0:
            changes[place] = best
            saved += fewer * len(f'"{place[-1]}":{best},')
    return form | changes if saved > 0 else form


def _votes(place: Place, rows: Sequence[_Row]) -> Counter[str]:
    """How many cases say what there. An id that is not made of arguments is one case's own."""
    found = Counter(row.says[place] for row in rows if place in row.says)
    return Counter({text: count for text, count in found.items() if place != ("id",) or "{" in text})


def _places(says: Sequence[Says]) -> list[Place]:
    """In the order of the case that says most. The tokens are each case's own."""
    longest_first = sorted(says, key=len, reverse=True)
    return [
        place
        for place in dict.fromkeys(p for one in longest_first for p in one)
        if place not in _EACH_ITS_OWN
    ]


# ---------------------------------------------------------------- lines


def _case(row: _Row, forms: dict[str, Says]) -> Line:
    variant = row.case.variant
    line = _line({} if variant == "default" else {"variant": variant}, row.says, forms[variant])
    return line | {"id": row.called} if "id" in line else line


def _line(line: Line, says: Says, form: Says) -> Line:
    """It, with what differs from the form."""
    without = []
    names = Counter(place[-1] for place in form)
    for place in dict.fromkeys([*says, *form]):
        text, above = says.get(place, _NOTHING), form.get(place, _NOTHING)
        if text == above:
            continue
        part, name = place[0], place[-1]
        if text == _NOTHING:
            without.append(name)
        else:
            is_plain = len(place) == 1 or (place in form and name not in OWN and names[name] == 1)
            value = json.loads(text)
            (line if is_plain else line.setdefault(part, {}))[name] = (
                _shorter(value, above) if part == "inputs" else value
            )
    return line | {"without": without} if without else line


def _shorter(value: Any, above: str) -> Any:
    """An input whose shape alone differs from the form's is its shape."""
    is_tensor = isinstance(value, dict) and "shape" in value
    as_above = is_tensor and reshaped(json.loads(above or "null"), value["shape"])
    return value["shape"] if is_tensor and as_above == value else value


def _row(entry: TaskEntry, case: Case, names: dict[Axis, str]) -> _Row:
    called, pattern = _called(entry, case)
    batch = _batch(case.batch) if case.batch else None
    tokens = {} if isinstance(batch, list) and tokens_of(batch) == _tokens(case) else {("T",): _tokens(case)}
    says = {
        ("id",): pattern,
        **tokens,
        **{("init", name): value for name, value in case.init.items()},
        **{("inputs", name): _input(name, value, case, names) for name, value in case.inputs.items()},
        ("batch",): batch,
        ("routing",): case.routing and case.routing.model_dump(mode="json", exclude_defaults=True),
        ("calls",): case.calls,
        ("ranks",): case.ranks,
    }
    if case.timed != (case.provenance.phase != HELD_OUT):
        says["timed",] = case.timed
    return _Row(case, called, {place: _text(value) for place, value in says.items()})


def _called(entry: TaskEntry, case: Case) -> tuple[str, str]:
    """The part of its id that is its own; and this in terms of its arguments, where the label makes it."""
    whole = case_id(case.variant, case.provenance, "*", case.dtype)
    before, _, after = whole.partition("*")
    called = case.id.removeprefix(before).removesuffix(after)
    if f"{before}{called}{after}" != case.id:
        raise UsageError(f"{entry.id}: case {case.id} is to be called {whole}")
    if case.provenance.architecture == REGISTRY:
        return called, called
    label = entry.label if isinstance(entry.label, str) else entry.label[case.variant]
    inputs = case.model_dump(include={"inputs"})["inputs"]
    for tokens in ("T{T}", "B{T}"):
        pattern = f"{tokens}-{label}" if label else tokens
        made = call_name(pattern, case.init | {"T": _tokens(case)}, inputs)
        if called == made or called.startswith(f"{made}-"):
            return called, pattern + called.removeprefix(made)
    return called, called


def _input(name: str, value: Any, case: Case, names: dict[Axis, str]) -> Any:
    if not isinstance(value, TensorSpec):
        return {"list": value} if isinstance(value, (list, tuple)) else value
    line = value.model_dump(mode="json", exclude_defaults=True)
    line["shape"] = [names.get((name, len(value.shape), axis), size) for axis, size in enumerate(value.shape)]
    if value.dtype == case.dtype:
        del line["dtype"]
    if value.view and value.view.size == value.shape[0] * value.view.strides[0]:
        del line["view"]["size"]
    return line


def _batch(batch: Batch) -> Any:
    line = batch.model_dump(mode="json", exclude_defaults=True)
    if set(line) == {"rows"}:
        return line["rows"]
    of_images = {name: value for name, value in line.items() if name != "rows"}
    return of_images if (batch.grids or batch.images) and Batch(**of_images) == batch else line


def _names(cases: Sequence[Case]) -> dict[Axis, str]:
    """What the axes of inputs are called that have the size of the tokens, or of an init argument, in all."""
    found: dict[Axis, list[str]] = {}
    for case in cases:
        numbers = {name: value for name, value in case.init.items() if type(value) is int}
        sizes = {"T": _tokens(case), **numbers}
        for name, spec in case.inputs.items():
            shape = spec.shape if isinstance(spec, TensorSpec) else ()
            for axis, size in enumerate(shape):
                place = (name, len(shape), axis)
                found[place] = [n for n in found.get(place, sizes) if sizes.get(n) == size]
    # Tokens come first in a shape: another axis is called so only where nothing else has its size.
    return {
        place: min(names, key=lambda n: (n == "T") != (place[2] == 0))
        for place, names in found.items()
        if names
    }


def _tokens(case: Case) -> int:
    return by_tokens(next(spec for spec in case.inputs.values() if isinstance(spec, TensorSpec)))[0]


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
