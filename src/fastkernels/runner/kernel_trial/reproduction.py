"""A failure as a folder that its author can run: the call's tensors, and a script without the harness.

    DIR/mine-L1-rms_norm/inputs.safetensors      arguments and parameters of the call that failed
                         expected.safetensors    the float64 oracle's outputs for them
                         actual.safetensors      the candidate's, where it returned any
                         run.py                  calls the candidate on the inputs, and compares
                         case.json               where run.py needs it

The draw is spent: no later call of a run has these inputs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fastkernels.judge.verdict import MACHINE_FAULTS, Verdict
from fastkernels.layout import shown
from fastkernels.loader.materialize import mutable_names
from fastkernels.records import Case, KernelRow, TensorSpec
from fastkernels.registry.schema import TaskEntry
from fastkernels.runner.kernel_trial.bench import Evidence, Outcome
from fastkernels.runner.kernel_trial.request import Job, Work

_MOST_CHARACTERS = 200
_FINE = MACHINE_FAULTS | {"PASSED", "UNSUPPORTED"}


def why_not(entry: TaskEntry, case: Case) -> str | None:
    """Why failures of this case are not written, where they are not."""
    if case.ranks > 1:
        return "its ranks are processes that call together"
    if entry.rule == "sampler":
        return "draws are judged by their distribution over many calls"
    return None


class View(NamedTuple):
    """How an input lies in what is stored; strides and offset count elements."""

    stored: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Reproductions:
    """The first failure of each candidate in each task."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device = folder, device
        self._written: dict[tuple[str, str], Path] = {}
        self._left_out: dict[tuple[str, str], str] = {}

    def add(self, job: Job, work: Work, outcome: Outcome) -> None:
        key, verdict = (job.name, work.entry.id), outcome.verdict
        if verdict.status in _FINE or key in self._written:
            return
        if outcome.evidence is None:
            one_call = "it does not follow from the inputs of one call"
            self._left_out.setdefault(key, why_not(work.entry, work.case) or f"{verdict.label}: {one_call}")
            return
        folder = self._folder / re.sub(r"[^\w.-]+", "-", "-".join(key))
        while folder in self._written.values():  # another name with the same letters
            folder = folder.with_name(f"{folder.name}-2")
        try:
            write(folder, job, work, verdict, outcome.evidence, self._device)
        except (OSError, SafetensorError) as error:
            self._left_out[key] = str(error)  # the run's rows are worth more
            return
        self._written[key] = folder

    def told(self, rows: Sequence[KernelRow]) -> Iterable[str]:
        """What was written, and what was not."""
        for (name, task), folder in self._written.items():
            yield f"the first failure of {name} in {task}: python {shown(folder / 'run.py')}"
        for (name, task), why in self._left_out.items():
            if (name, task) not in self._written:
                yield f"--reproduce: of {name} in {task} nothing is written: {why}"
        if all(row.verdict.split("(")[0] in _FINE for row in rows):
            yield f"--reproduce {self._folder}: nothing failed, and nothing is written"
        elif not self._written and not self._left_out:
            yield f"--reproduce {self._folder}: nothing is written: what failed did so before any call"


def write(folder: Path, job: Job, work: Work, verdict: Verdict, found: Evidence, device: str) -> None:
    """Fill a new folder."""
    folder.mkdir(parents=True)
    stored, views = packed(found.inputs)
    pools = {name for name in found.expected if _is_pool(name, work.case)}
    expected = {name: value[1:] if name in pools else value for name, value in found.expected.items()}
    for name, tensors in (("inputs", stored), ("expected", expected), ("actual", found.actual)):
        own = {key: value.cpu().contiguous().clone() for key, value in tensors.items()}
        save_file(own, folder / f"{name}.safetensors")
    is_plain = _is_plain(job, work, found.inputs)
    if not is_plain:
        (folder / "case.json").write_text(work.case.model_dump_json(indent=1))
    assert verdict.failure is not None
    place = verdict.failure.place
    told = f"{verdict.label} of {job.name}, {work.entry.id} {work.case.id}\n{verdict.failure.told}"
    places = {place.output: place.index} if place else {}
    changes = verdict.kind == "mutated_input"
    parts = (
        [_comment(told), _PLAIN_IMPORTS if is_plain else _BOUND_IMPORTS],
        [_SETUP.format(device=device), _views(views), _BEFORE if changes else ""],
        [_plain(job, work, device) if is_plain else _bound(job, device)],
        [_AFTER if changes else "", _COMPARISON.format(places=places)],
    )
    text = "\n\n".join("\n".join(filter(None, map(str.strip, part))) for part in parts)
    (folder / "run.py").write_text(f"{text}\n")


def packed(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, View]]:
    """What is stored of tensors, and how those that are not packed lie in it: these are stored with all of
    their memory, once."""
    stored: dict[str, Tensor] = {}
    views: dict[str, View] = {}
    bases: dict[tuple[int, torch.dtype], str] = {}
    for name, value in tensors.items():
        if value.is_contiguous() or not value.numel():
            stored[name] = value
            continue
        memory = value.untyped_storage()
        base = bases.setdefault((memory.data_ptr(), value.dtype), f"storage.{len(bases)}")
        if base not in stored:
            stored[base] = value.as_strided((memory.nbytes() // value.itemsize,), (1,), 0)
        views[name] = View(base, tuple(value.shape), value.stride(), int(value.storage_offset()))
    return stored, views


def _is_plain(job: Job, work: Work, inputs: Mapping[str, Tensor]) -> bool:
    """Whether the candidate's file is all that the call needs: it defines the class, imports no other task,
    and its module has no cache."""
    file = job.files.get(work.entry.id)
    if file is None or any(name.startswith(("step.", "cache.", "state.")) for name in inputs):
        return False
    tree = ast.parse(file.read_text())
    is_relative = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    return not is_relative and work.entry.variants[work.case.variant] in classes


def _comment(text: str) -> str:
    """Its first lines, which say the most."""
    return "\n".join(f"# {line[:_MOST_CHARACTERS]}" for line in text.splitlines()[:3])


def _plain(job: Job, work: Work, device: str) -> str:
    case = work.case
    arguments = ", ".join(
        f"{name}=" + (f'inputs["arg.{name}"]' if isinstance(value, TensorSpec) else repr(value))
        for name, value in case.inputs.items()
    )
    changed = sorted(mutable_names(work.entry.mutates, [f"arg.{name}" for name in case.inputs]))
    return _PLAIN.format(
        file=str(job.files[work.entry.id].resolve()),
        cls=work.entry.variants[case.variant],
        init=", ".join(f"{name}={value!r}" for name, value in case.init.items()),
        device=device,
        dtype=case.dtype,
        arguments=arguments,
        changed=f"\noutputs |= {{name: inputs[name] for name in {changed}}}" if changed else "",
    )


def _bound(job: Job, device: str) -> str:
    return _BOUND.format(device=device, layers=[str(Path(layer).resolve()) for layer in job.layers])


def _views(views: Mapping[str, View]) -> str:
    """One statement, or none."""
    each = [
        f'"{name}": inputs["{base}"].as_strided({shape}, {strides}, {offset})'
        for name, (base, shape, strides, offset) in views.items()
    ]
    return f"inputs |= {{{', '.join(each)}}}" if each else ""


def _is_pool(name: str, case: Case) -> bool:
    """Whether an output is the pool of a cache or of states: nobody reads its row 0."""
    spec = case.inputs.get(name.removeprefix("arg."))
    draw = spec.draw if isinstance(spec, TensorSpec) else ""
    return name.startswith(("cache.", "state.")) or draw in ("cache", "state")


_PLAIN_IMPORTS = """import importlib.util
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file
"""
_BOUND_IMPORTS = """from pathlib import Path
import torch
from safetensors.torch import load_file
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Case
"""
_PLAIN = """spec = importlib.util.spec_from_file_location("candidate", {file!r})
sys.modules["candidate"] = candidate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(candidate)
torch.set_default_dtype(torch.{dtype})
with torch.device({device!r}):
    module = candidate.{cls}({init}).eval().requires_grad_(False)
torch.set_default_dtype(torch.float32)
for name, value in module.state_dict().items():
    value.copy_(inputs.get(f"param.{{name}}", value))  # tied ones are there once
for part in module.modules():
    getattr(part, "prepare", lambda: None)()
with torch.no_grad():
    result = module({arguments})
parts = result if isinstance(result, tuple) else (result,)
outputs = {{f"out.{{i}}": part for i, part in enumerate(parts)}}{changed}
"""
_BOUND = """case = Case.model_validate_json((here / "case.json").read_text())
overlay = Overlay.over_baseline([Path(layer) for layer in {layers}])
module = build_module(overlay, case, {device!r})
outputs = bind(module, case, inputs).invoke()  # with parameters, caches and the step's context
"""
_BEFORE = "before = {name: value.clone() for name, value in inputs.items()}"
_AFTER = 'print("inputs that the call changed:", [n for n in inputs if not same(inputs[n], before[n])])'
_SETUP = """same = lambda x, y: torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)
here, names = Path(__file__).parent, ("inputs", "expected", "actual")
inputs, expected, actual = (load_file(here / f"{{name}}.safetensors", {device!r}) for name in names)
"""
_COMPARISON = """for name, right in expected.items():
    got, skipped = outputs[name].double(), len(outputs[name]) - len(right)  # row 0 of a pool: nobody reads it
    error = torch.where(got[skipped:] == right, 0, got[skipped:] - right).abs().nan_to_num(nan=torch.inf)
    largest = torch.unravel_index(error.argmax(), error.shape)
    at = {places}.get(name) or tuple(int(i) + skipped * (not d) for d, i in enumerate(largest))
    print(f"{{name}}: relative error {{error.norm() / right.double().norm():.3g}}; at {{list(at)}}", end=" ")
    print(f"expected {{right[(at[0] - skipped, *at[1:])]:.6g}}, got {{got[at]:.6g}}", end="; ")
    print("as in the trial:", same(outputs[name], actual[name]) if actual else "no results are known")
"""
