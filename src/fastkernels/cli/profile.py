"""`fk profile`: what limits a task's case, and where a model's time goes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastkernels.cli import options
from fastkernels.cli.output import emit_json, json_option
from fastkernels.errors import MachineError, UsageError

if TYPE_CHECKING:
    from fastkernels.progress import Show

MOST_CASES = 20
_POSITIVE = click.IntRange(min=1)
_OF_A_TASK = ("architecture", "case_glob")
_OF_A_MODEL = ("out", "nsys", "requests", "input_len", "output_len")


@click.command(
    epilog="Examples: fk profile --target rms_norm --architecture llama · fk profile --model llama"
)
@click.option("--target", metavar="TASK", help="A task: its timed cases under Nsight Compute (CUDA).")
@options.model()
@options.architecture
@options.case
@options.size
@options.device
@click.option(
    "--candidates", metavar="DIR", help="Candidates in place of the baseline. They run without isolation."
)
@options.written("--out", text="A model's trace. Default: MODEL.trace.json.gz, or MODEL.nsys-rep, here.")
@click.option("--nsys", is_flag=True, help="A model under Nsight Systems, in place of torch.profiler.")
@click.option("--requests", type=_POSITIVE, default=4, show_default=True, help="Of a model of tokens.")
@click.option("--input-len", type=_POSITIVE, default=64, show_default=True)
@click.option("--output-len", type=_POSITIVE, default=16, show_default=True)
@options.quiet
@json_option
def command(target: str | None, model: str | None, quiet: bool, json_path: str | None, **flags: Any) -> None:
    """Profile a task's cases or a model.

    Of a case: what each kernel reaches of the device's bandwidth, how many warps are resident, and what
    limits it, by Nsight Compute. Of a model: where the time of one run goes, and a trace that
    https://ui.perfetto.dev opens.
    """
    from fastkernels.cli.progress import showing

    if (target is None) == (model is None):
        raise UsageError("Say what to profile: a task (--target rms_norm), or a model (--model llama)")
    if target is not None:
        options.refuse(_OF_A_MODEL, "--target profiles calls of a task; a model has --model")
    else:
        options.refuse(_OF_A_TASK, "--model profiles a whole model; a task has --target")
    with showing(quiet) as show:
        facts, parts = _task(target, flags, show) if target is not None else _model(str(model), flags, show)
    if json_path:
        emit_json(facts, json_path)
        return
    from fastkernels.report import layout

    layout.show(parts, sys.stdout)


def _task(target: str, flags: dict[str, Any], show: Show) -> tuple[dict[str, Any], list[Any]]:
    from fastkernels import registry
    from fastkernels.errors import NotFoundError
    from fastkernels.loader.candidates import discover
    from fastkernels.measure.environment import require_device
    from fastkernels.profiling import ncu, tools
    from fastkernels.progress import Progress
    from fastkernels.records import default_size
    from fastkernels.report import tools_table
    from fastkernels.settings import resolve

    entries = registry.find_tasks([target], None, flags["architecture"])
    settings = resolve(device=flags["device"], size=flags["size"])
    if require_device(settings.device_asked) != "cuda":
        raise MachineError("Nsight Compute profiles CUDA kernels alone. On a CPU: fk profile --model M")
    tools.NCU.path()
    size = settings.size_asked or default_size("cuda")
    every = [
        c for e in entries for c in registry.cases(e, size, flags["architecture"]) if c.timed and c.ranks == 1
    ]
    chosen = registry.matching(every, flags["case_glob"])
    if not chosen:
        known = [case.id for case in every]
        raise NotFoundError("timed case", flags["case_glob"] or target, known, f"fk show {target}")
    if len(chosen) > MOST_CASES:
        raise UsageError(
            f"{len(chosen)} timed cases of {target}, at most {MOST_CASES} are profiled: narrow them by "
            f"--case or --architecture. See: fk show {target} --timed"
        )
    sets = discover([flags["candidates"]]) if flags["candidates"] else []
    sides = [(found.name, list(found.layers)) for found in sets] or [("baseline", [])]
    works = [(case, *side) for case in chosen for side in sides]
    found = []
    for done, (case, name, layers) in enumerate(works):
        show(Progress(done, len(works), f"{name} · {case.task} {case.id}"))
        found.append((f"{case.task} {case.id}", name, ncu.profile(case, layers)))
    facts = [{"case": case, "candidate": name, **profile.model_dump()} for case, name, profile in found]
    return {"kind": "profile task", "rows": facts}, tools_table.profiles(found)


def _model(model: str, flags: dict[str, Any], show: Show) -> tuple[dict[str, Any], list[Any]]:
    from rich.text import Text

    from fastkernels.measure.environment import require_device
    from fastkernels.profiling import model_trace
    from fastkernels.records import default_size
    from fastkernels.report import files, layout
    from fastkernels.settings import resolve

    settings = resolve(device=flags["device"], size=flags["size"])
    device = require_device(settings.device_asked)
    size = settings.size_asked or default_size(device)
    lengths = {name: flags[name] for name in ("candidates", "requests", "input_len", "output_len")}
    request = model_trace.ModelRequest(model=model, device=device, size=size, **lengths)
    stem = Path(model).name
    if flags["out"] == "-":
        raise UsageError("--out -: a trace is a file: name one")
    if flags["nsys"]:
        if device != "cuda":
            raise MachineError("--nsys traces CUDA. On a CPU leave it out: torch.profiler traces there, too")
        report = model_trace.with_nsys(request, Path(flags["out"] or f"{stem}.nsys-rep"), show)
        return {"kind": "profile model", "report": str(report)}, [Text(f"{report}: open it with nsys-ui")]
    out = Path(flags["out"] or f"{stem}.trace.json.gz")
    if not out.name.endswith((".json", ".json.gz")):
        raise UsageError(f"--out {out}: name a file that ends with .json or .json.gz")
    files.require_writable(out, "--out")
    operations = model_trace.trace(request, out, show)
    names = ("calls", "device us", "host us", f"% of the {'device' if device == 'cuda' else 'host'}")
    columns = [layout.Column("operation", "", right=False), *(layout.Column(name, "") for name in names)]
    rows = [
        [o.name[:50], str(o.calls), f"{o.device_us:.0f}", f"{o.host_us:.0f}", f"{100 * o.share:.1f}"]
        for o in operations
    ]
    opened = Text(f"\n{out}: open it at https://ui.perfetto.dev")
    facts = {"kind": "profile model", "trace": str(out), "operations": [vars(o) for o in operations]}
    return facts, [layout.table(columns, rows), opened]
