"""`registry/cases/L*/*.jsonl`: the cases of a task, one on each line, below what they have in common.

    {"form":"default","id":"T{T}-K{input_size}-N{output_size}",
     "init":{"input_size":4096,"output_size":4096,"bias":false},"inputs":{"x":["T","input_size"]}}  (one line)
    {"architecture":"llama","config":"8b","size":"full","dtype":"bfloat16","phase":"prefill"}
    {"form":"default","calls":32}
    {"T":512,"output_size":6144}
    {"T":512}
    {"phase":"decode"}
    {"T":32,"output_size":6144}

A heading says whose cases follow and, where it says nothing else, in which phase. A form is what the cases of
a variant have in common: in the whole file, or below a heading, until the next that names an architecture.
Every other line is a case. It says what differs from its form: an argument by its name, or among `init` and
`inputs` where the form has none; `without` has the names of arguments that it lacks.

What follows from the rest is not said:

- the task is the file's, and cases of the phase `held-out` are not timed;
- an input has the case's dtype, and a view as many elements as its rows; a list in place of an input is its
  shape, all else is the form's, and a list that is no tensor is `{"list": [..]}`; a list in place of a batch
  is its rows;
- a size in a shape may be the name of an init argument, or T: the tokens, those of the batch where the case
  has none;
- an id stands between who makes the call and the dtype, and its form may name T, arguments (of tensors, their
  rows) and dims, the first input's sizes behind its first: `llama-8b-T512-K4096-N6144-bf16`.

`case_lines.py` writes these files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastkernels.errors import FileFormatError
from fastkernels.records import REGISTRY, Case, DType, Provenance, TensorSpec
from fastkernels.registry.load import read_jsonl

HELD_OUT = "held-out"  # the phase of cases that no step of a workload makes
PROVENANCE = ("architecture", "config", "phase")
# What lines say besides arguments. An argument of such a name stands among `init` or `inputs`.
OWN = {"form", "architecture", "phase", "size", "dtype", "id", "variant", "T", "init", "inputs", "without"}
OWN |= {"batch", "routing", "calls", "timed", "ranks"}
SHORT: dict[DType, str] = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
_NO_FORM: dict[str, Any] = {"init": {}, "inputs": {}}
_LACKED = ...  # stands in a form for an argument that a case lacks, so that others keep their order

Line = dict[str, Any]


def read_cases(path: Path) -> list[Case]:
    """FileFormatError with the line of the first that is no case of this task, or has an earlier one's id."""
    task = f"{path.parent.name}/{path.stem}"
    of_file: dict[str, Line] = {}  # forms by variant
    forms = of_file  # those below the heading
    heading: Line = {}
    above: Line = {"task": task}  # what follows from the heading

    def whole(line: Any) -> Any:
        try:
            return read(line)
        except KeyError as error:
            raise ValueError(f"it needs {error}, which neither it nor what stands above it says") from None
        except (TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"it is no line of a file of cases: {error}") from None

    def read(line: Any) -> Any:
        nonlocal forms, heading, above
        if not isinstance(line, dict):
            return line
        if "phase" in line:
            if "architecture" in line:
                forms, heading = dict(of_file), line
            provenance = Provenance(**{name: (heading | line)[name] for name in PROVENANCE})
            own = {name: value for name, value in heading.items() if name not in PROVENANCE}
            above = {"task": task, **own, "provenance": provenance, "timed": provenance.phase != HELD_OUT}
        elif "form" in line:
            variant = line.pop("form")
            forms[variant] = _merged(forms.get(variant, _NO_FORM), line)
        else:
            form = forms.get(line.get("variant", "default"), _NO_FORM)
            return _whole({**above, **_merged(form, line)})
        return None

    found = read_jsonl(path, Case, whole)
    ids: set[str] = set()
    for number, case in found.items():
        if case.task != task or case.id in ids:
            problem = f"id {case.id} is taken" if case.id in ids else f"a case of {case.task}"
            raise FileFormatError(path, f"line {number}", problem)
        ids.add(case.id)
    return list(found.values())


def _merged(form: Line, line: Line) -> Line:
    """The form with what the line says. Arguments keep their order."""
    init, inputs = form["init"], form["inputs"]
    found = {**form, **line}
    for name in line:
        if name in OWN:
            continue
        if name in init:
            if init is form["init"]:
                init = {**init}
            init[name] = found.pop(name)
        elif name in inputs:
            if inputs is form["inputs"]:
                inputs = {**inputs}
            value = found.pop(name)
            inputs[name] = reshaped(inputs[name], value) if isinstance(value, list) else value
    if "init" in line:
        init = {**init, **line["init"]}
    if "inputs" in line:
        own = line["inputs"].items()
        inputs = inputs | {k: reshaped(inputs.get(k), v) if isinstance(v, list) else v for k, v in own}
    if "without" in line:
        init = {name: _LACKED if name in line["without"] else value for name, value in init.items()}
        inputs = {name: _LACKED if name in line["without"] else value for name, value in inputs.items()}
        del found["without"]
    found["init"], found["inputs"] = init, inputs
    return found


def reshaped(spec: Any, shape: list[Any]) -> Line:
    """The line of an input of another shape; of a plain one where that was no tensor."""
    return {**spec, "shape": shape} if isinstance(spec, dict) else {"shape": shape}


def _whole(found: Line) -> Line:
    """A case with what follows from the rest of it. What it lacks is left for the schema to tell."""
    batch, dtype, tokens = found.get("batch"), found.get("dtype"), found.pop("T", None)
    # No case shares a list or a section of a configuration with another: a module may write there.
    found["init"] = init = {
        name: _copy(value) if isinstance(value, (dict, list)) else value
        for name, value in found["init"].items()
        if value is not _LACKED
    }
    if isinstance(batch, list):
        found["batch"] = {"rows": batch}
        tokens = tokens or tokens_of(batch)
    names = init if tokens is None else {**init, "T": tokens}
    found["inputs"] = inputs = {
        name: _input(value, names, dtype) if isinstance(value, dict) else value
        for name, value in found["inputs"].items()
        if value is not _LACKED
    }
    if "id" in found and dtype in SHORT:
        called = call_name(found["id"], names, inputs)
        found["id"] = case_id(found.get("variant", "default"), found["provenance"], called, dtype)
    return found


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items()}
    return [_copy(part) for part in value] if isinstance(value, list) else value


def tokens_of(rows: Sequence[Sequence[int]]) -> int:
    return sum([row[0] * row[1] for row in rows])


def _input(line: Line, names: Line, dtype: Any) -> Any:
    if "list" in line:
        return line["list"]
    shape = [names.get(size, size) for size in line["shape"]]
    spec = {"dtype": dtype, **line, "shape": shape}
    if "view" in line and "size" not in line["view"]:
        spec["view"] = {**line["view"], "size": shape[0] * line["view"]["strides"][0]}
    return spec


def call_name(pattern: str, names: Line, inputs: Line) -> str:
    """What tells the calls of a model apart: `T{T}-K{input_size}` with the numbers of a case."""
    if "{" not in pattern:
        return pattern
    if "{dims" in pattern:
        first = next(value for value in inputs.values() if isinstance(value, dict))
        names = {**names, "dims": "x".join(map(str, first["shape"][1:]))}
    try:
        return pattern.format_map(names)
    except KeyError:  # it counts an input
        rows = {n: spec["shape"][0] for n, spec in inputs.items() if isinstance(spec, dict) and spec["shape"]}
        return pattern.format_map({**inputs, **rows, **names})


def by_tokens(spec: TensorSpec) -> tuple[int, ...]:
    """Its shape, with the tokens first: positions on several axes have them last."""
    return spec.shape[::-1] if spec.draw.startswith("step.positions") else spec.shape


def case_id(variant: str, provenance: Provenance, called: str, dtype: DType) -> str:
    """`qkv-llama-8b-T2048-K4096-bf16`; a case that no architecture makes is called as its task says."""
    if provenance.architecture == REGISTRY:
        return called
    of = "" if variant == "default" else f"{variant}-"
    return f"{of}{provenance.architecture}-{provenance.config}-{called}-{SHORT[dtype]}"
