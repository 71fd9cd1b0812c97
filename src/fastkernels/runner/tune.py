"""From a comparison of implementations to a device's table: which one each kernel uses, up to which size.

    report = run_kernels(KernelsRequest(providers=True))
    table = tune(report)                      {"rms_norm": [Choice(use="triton", max_rows=256), "torch"]}
    write(table, Path("registry/devices/nvidia-h200.yaml"), report)

Cases of one kernel are grouped by its size (rows, tokens or requests, as the kernel counts them). At a size
an implementation's cost is the geometric mean of its times over the cases, weighted by their calls; it must
serve all of them. The one that was used before stays unless another is faster by more than noise.

A case decides only if all implementations that serve it were timed under one contract: FlashInfer's, say,
cannot be captured, and a captured kernel's time is no reason to prefer it where nothing is captured. A kernel
without such a case is undecided and gets no entry: its declared order holds.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastkernels import kernels, registry
from fastkernels.errors import UsageError
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
    """The table of the report's device, without choices for a kernel that is undecided. UsageError for a
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


def write(table: Table, path: Path, report: KernelReport) -> None:
    """Put the table into a device's file, in place of the one that is there; other facts stay as they are."""
    environment = report.environment
    lines = [
        f"# implementations: measured by fk tune on {environment.started_at[:10]}, "
        f"torch {environment.torch}, triton {environment.triton}, driver {environment.driver}",
        "implementations:",
    ]
    for kernel, choices in table.items():
        if not choices:
            continue
        told = (c.use if c.max_rows is None else f"{{use: {c.use}, max_rows: {c.max_rows}}}" for c in choices)
        lines.append(f"  {kernel}: [{', '.join(told)}]")
    old = path.read_text(encoding="utf-8") if path.is_file() else f"name: {environment.device}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_without_table(old).rstrip() + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}. Name another file") from error


def _without_table(text: str) -> str:
    """The file without its block `implementations`, and without what fk tune wrote above it."""
    text = re.sub(r"^# implementations: measured by fk tune.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^implementations:.*\n(?:[ \t]+.*\n?)*", "", text, flags=re.MULTILINE)


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
