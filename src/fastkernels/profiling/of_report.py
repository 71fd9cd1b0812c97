"""`fk kernels --profile ncu` and `--sanitize`: candidates of a report, behind their verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from fastkernels.errors import MachineError
from fastkernels.layout import shown
from fastkernels.loader.authored import kernel_names
from fastkernels.loader.candidates import CandidateSet
from fastkernels.profiling import ncu, sanitizer
from fastkernels.progress import Progress, Show
from fastkernels.records import Case, KernelReport, Sanitized
from fastkernels.registry import cases


def with_profiles(report: KernelReport, sets: Mapping[str, CandidateSet], show: Show) -> KernelReport:
    """Each timed row that passed, with what Nsight Compute counted of one call of it. What is not profiled
    is a note."""
    rows, notes = [*report.rows], [*report.notes]
    mine = [
        i for i, row in enumerate(rows) if row.verdict == "PASSED" and row.timed and row.candidate in sets
    ]
    for row in rows:
        if row.verdict != "PASSED" and row.timed and row.candidate in sets:
            folders = ":".join(shown(layer) for layer in sets[row.candidate].layers)
            notes.append(
                f"--profile ncu: cases of {row.task} that did not pass are not profiled. Whatever "
                f"the verdict: fk profile --target {row.task} --candidates {folders}"
            )
    for done, i in enumerate(mine):
        row = rows[i]
        show(Progress(done, len(mine), f"ncu: {row.candidate} · {row.task} {row.case}"))
        case = _case(row.task, row.case)
        if case is None:
            notes.append(
                f"--profile ncu: {row.task} {row.case} is not profiled: it is a call of one process alone"
            )
            continue
        try:
            profile = ncu.profile(case, sets[row.candidate].layers)
        except MachineError as error:
            notes.append(f"--profile ncu: {error}")
            continue
        rows[i] = row.model_copy(update={"profile": profile})
    return report.model_copy(update={"rows": tuple(rows), "notes": tuple(dict.fromkeys(notes))})


def with_sanitizer(report: KernelReport, sets: Mapping[str, CandidateSet], show: Show) -> KernelReport:
    """One call of each candidate in each variant of each task, on its smallest case: a tool slows kernels
    down by tens of times. Whatever its verdict: a call that crashed is what it is for."""
    chosen = [*_smallest(report, sets)]
    found: list[Sanitized] = []
    for done, (name, case) in enumerate(chosen):
        show(Progress(done, len(chosen), f"compute-sanitizer: {name} · {case.task} {case.id}"))
        layers: list[Path] = [*sets[name].layers]
        found += sanitizer.sanitize(name, case, layers, kernel_names(layers))
    return report.model_copy(update={"sanitized": tuple(found)})


def _smallest(report: KernelReport, sets: Mapping[str, CandidateSet]) -> Iterator[tuple[str, Case]]:
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for row in report.rows:
        case = _case(row.task, row.case) if row.candidate in sets else None
        if case is not None:
            groups.setdefault((row.candidate, row.task, row.variant), []).append(case)
    for (name, _, _), those in groups.items():
        yield name, min(those, key=_elements)


def _case(task: str, case_id: str) -> Case | None:
    """None for a call of several ranks, and for one with captured routing, which the registry has not."""
    return next((case for case in cases(task) if case.id == case_id and case.ranks == 1), None)


def _elements(case: Case) -> int:
    shapes = (getattr(spec, "shape", ()) for spec in case.inputs.values())
    return sum(math.prod(shape) for shape in shapes)
