"""From a comparison of implementations to a device's table: which one each kernel uses, up to which size.

    report = run_kernels(KernelsRequest(providers=True))
    table = tune(report)                      {"rms_norm": [Choice(use="triton", max_rows=256), "torch"]}
    write(table, Path("registry/devices/nvidia-h200.yaml"), report)

Cases of one kernel are grouped by its size (rows, tokens or requests, as the kernel counts them). At a size
an implementation's cost is the geometric mean of its times over the cases, weighted by their calls; it must
serve all of them. The one that was used before stays unless another is faster by more than noise.

A case decides only if all implementations that serve it have stable times under one contract: FlashInfer's,
say, cannot be captured, and a captured kernel's time is no reason to prefer it where nothing is captured. A
kernel without such a case is undecided: the entry that the device's file has for it stays, as do those of
kernels that nobody asked for.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fastkernels import kernels, registry
from fastkernels.errors import FileFormatError, UsageError
from fastkernels.kernels.base import observe
from fastkernels.loader.inputs import trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.roofline import meta_tensors
from fastkernels.measure.stats import geomean
from fastkernels.records import Case, KernelReport, KernelRow
from fastkernels.registry.schema import Choice

LEAST_GAIN = 0.02  # a smaller one is not worth another implementation, whatever the noise says
_PREFIX = "impl:"

Times = dict[str, float]  # implementation -> microseconds
Table = dict[str, list[Choice]]


def tune(report: KernelReport) -> Table:
    """What the report decides for its device: no choices for a kernel that is undecided. UsageError for a
    report without implementations to compare."""
    measured: dict[str, dict[int, list[tuple[int, Times]]]] = defaultdict(lambda: defaultdict(list))
    before: dict[str, str] = {}
    cases = {(task, case.id): case for task in {r.task for r in report.rows} for case in registry.cases(task)}
    undecided: set[str] = set()
    for key, rows in _by_case(report.rows).items():
        if key not in cases:
            continue
        times = _comparable(rows)
        chosen = dict(pair.split("=") for pair in (rows[0].baseline_impl or "").split())
        for kernel, size in sizes(cases[key]).items():
            if kernel not in chosen:
                continue
            here = {name: us for name, us in times.items() if name in kernels.registered[kernel].names}
            if not here:
                undecided.add(kernel)
            else:
                before.setdefault(kernel, chosen[kernel])
                measured[kernel][size].append((rows[0].calls, here))
    if not measured and not undecided:
        raise UsageError(
            "The report compares no implementations; make one with: fk kernels --providers --json PATH"
        )
    table = {kernel: _entries(by_size, before[kernel]) for kernel, by_size in measured.items()}
    return dict(sorted(({kernel: [] for kernel in undecided} | table).items()))


def sizes(case: Case) -> dict[str, int]:
    """Kernel -> the size that its policy is asked for, in one call of the case's baseline module."""
    overlay, found = Overlay.over_baseline(), {}
    module = build_module(overlay, case, "meta")
    call = bind(module, case, meta_tensors(trial_specs(case, module)))

    def note(kernel: str, args: Sequence[Any]) -> None:
        rows = kernels.registered[kernel].rows
        found[kernel] = max(found.get(kernel, 0), rows(*args) if rows else 0)

    with observe(note):
        call.invoke()
    return found


def entries(path: Path) -> dict[str, Any]:
    """Kernel -> the entry that a device's file has for it. FileFormatError."""
    if not path.is_file():
        return {}
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, AttributeError) as error:
        raise FileFormatError(path, "implementations", str(error)) from error


def write(table: Table, path: Path, report: KernelReport, device: Path) -> None:
    """Put what is decided into a device's file, each entry in place of the one that it has for the kernel;
    everything else stays as it is. A new file begins as a copy of the `device`'s own, where there is one.
    FileFormatError where an entry would be lost."""
    environment = report.environment
    old = next((file for file in (path, device) if file.is_file()), None)
    text = old.read_text(encoding="utf-8") if old else f"name: {environment.device}\n"
    how = (
        f"fk tune on {environment.started_at[:10]}, torch {environment.torch}, triton {environment.triton}, "
        f"driver {environment.driver}"
    )
    decided = {kernel: f"[{', '.join(map(_told, choices))}]" for kernel, choices in table.items() if choices}
    new = _with_entries(text, {kernel: f"{kernel}: {entry}  # {how}" for kernel, entry in decided.items()})
    wanted = {kernel: yaml.safe_load(entry) for kernel, entry in decided.items()}
    if _parsed(new) != {**(entries(old) if old else {}), **wanted}:
        problem = "write the entry of each kernel on a line of its own, so that one can be replaced"
        raise FileFormatError(old or path, "implementations", problem)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}. Name another file") from error


def _parsed(text: str) -> dict[str, Any]:
    return dict((yaml.safe_load(text) or {}).get("implementations") or {})


def _told(choice: Choice) -> str:
    return choice.use if choice.max_rows is None else f"{{use: {choice.use}, max_rows: {choice.max_rows}}}"


def _with_entries(text: str, lines: Mapping[str, str]) -> str:
    """The file with each kernel's line in its block `implementations`, in place of the kernel's entry there,
    on however many lines."""
    text = text.rstrip("\n") + "\n"
    block = re.search(r"^implementations:[ \t]*(?:#.*)?\n((?:[ \t]+.*\n|\n)*)", text, re.MULTILINE)
    if block is None:
        if _parsed(text):
            return text  # all on one line: `write` refuses
        return text + "implementations:\n" + "".join(f"  {line}\n" for line in lines.values())
    body = block[1]
    for kernel, line in lines.items():
        own = rf"^([ \t]+)['\"]?{re.escape(kernel)}['\"]?:.*\n(?:\1(?:[ \t]|- ).*\n)*"
        body, found = re.subn(own, lambda place, line=line: f"{place[1]}{line}\n", body, flags=re.MULTILINE)
        if not found:
            indent = re.search(r"^[ \t]+(?=\w)", body, re.MULTILINE)
            kept = f"{body.rstrip()}\n".lstrip("\n")
            body = f"{kept}{indent[0] if indent else '  '}{line}\n{body[len(kept) :]}"
    return text[: block.start(1)] + body + text[block.end(1) :]


def _by_case(rows: Sequence[KernelRow]) -> Mapping[tuple[str, str], list[KernelRow]]:
    found: dict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for row in rows:
        if row.candidate.startswith(_PREFIX) and row.timed and row.verdict in ("PASSED", "UNSTABLE"):
            found[row.task, row.case].append(row)
    return found


def _comparable(rows: Sequence[KernelRow]) -> Times:
    """The times of a case that all were taken under one contract; none where one of them was not."""
    if len({row.contract for row in rows}) > 1 or any(row.candidate_us is None for row in rows):
        return {}
    return {row.candidate.removeprefix(_PREFIX): row.candidate_us for row in rows if row.candidate_us}


def _entries(by_size: Mapping[int, list[tuple[int, Times]]], before: str) -> list[Choice]:
    """The winner of each size, with neighbours of one winner as one entry; the last holds for all sizes."""
    found: list[Choice] = []
    for size in sorted(by_size):
        winner = _winner(by_size[size], found[-1].use if found else before)
        if found and found[-1].use == winner:
            found[-1] = Choice(use=winner, max_rows=size)
        else:
            found.append(Choice(use=winner, max_rows=size))
    return [*found[:-1], Choice(use=found[-1].use)]


def _winner(cases: list[tuple[int, Times]], usual: str) -> str:
    """Of the implementations that serve all cases of a size. `usual` wins where it is as good as the best."""
    serving = set.intersection(*(set(times) for _, times in cases))
    if not serving:
        return usual
    calls = [calls for calls, _ in cases]
    cost = {name: geomean([times[name] for _, times in cases], calls) for name in serving}
    best = min(cost, key=cost.__getitem__)
    return usual if cost.get(usual, math.inf) <= (1 + LEAST_GAIN) * cost[best] else best
