"""What NVIDIA's tools said of candidates, as tables: Nsight Compute and compute-sanitizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from fastkernels.records import Finding, KernelReport, Profile, Sanitized
from fastkernels.report.layout import Column, heading, indented, legend, number, table

PROFILE = (
    Column("case", "", right=False),
    Column("candidate", "", right=False),
    Column("us", "time of the call's kernels under the profiler, from flushed caches"),
    Column("DRAM %", "bytes a second, of the memory's peak"),
    Column("L2 %", "of its peak"),
    Column("SM %", "the busiest unit of the multiprocessors, of its peak"),
    Column("occupancy %", "warps that were resident, of those that fit on the device"),
)


Profiled = Sequence[tuple[str, str, Profile]]  # case, candidate, profile


def profiles(found: Profiled) -> list[RenderableType]:
    """Nothing where none was made."""
    if not found:
        return []
    rows = profile_cells(found)
    limits = [Text(line) for line in limits_of(found)]
    return [heading("Nsight Compute"), table(PROFILE, rows), Text(), *limits, Text(), *legend(PROFILE, rows)]


def profile_cells(found: Profiled) -> list[list[str]]:
    shares = ("dram_pct", "l2_pct", "compute_pct", "occupancy_pct")
    return [
        [case, who, format(profile.us, ".4g"), *(number(profile.mean(name), ".0f") for name in shares)]
        for case, who, profile in found
    ]


def limits_of(found: Profiled) -> list[str]:
    """A sentence for each: what limits it."""
    return [f"{case}{f'  {who}' if who else ''}: {profile.limit}" for case, who, profile in found]


def profiles_of(report: KernelReport) -> Profiled:
    return [(f"{row.task} {row.case}", row.candidate, row.profile) for row in report.rows if row.profile]


def of_report(report: KernelReport) -> list[RenderableType]:
    return [*profiles(profiles_of(report)), *_sanitized(report.sanitized)]


def _sanitized(found: Sequence[Sanitized]) -> Iterable[RenderableType]:
    if not found:
        return
    yield heading("Compute sanitizer")
    for one in found:
        said, *findings = said_of(one)
        yield Text(said, style="bold red" if is_bad(one) else "")
        yield from (indented(Text(line)) for line in findings)


def is_bad(one: Sanitized) -> bool:
    return any(finding.authored for finding in one.findings)


def said_of(one: Sanitized) -> list[str]:
    """A line, and one for each finding."""
    said = one.problem or (_counted(one) if one.errors else "nothing found")
    lines = [f"{one.candidate}  {one.task} {one.case}  {one.tool}: {said}", *map(_told, one.findings)]
    if one.errors and not one.findings:
        lines.append("none of them names a kernel: see compute-sanitizer's own output")
    return lines


def _counted(one: Sanitized) -> str:
    placed = sum(finding.count for finding in one.findings)
    of_them = "" if placed == one.errors else f", {placed} of them"
    return f"{one.errors} errors{of_them} by kernel and line"


def _told(finding: Finding) -> str:
    where = f" at {finding.file}:{finding.line}" if finding.file else ""
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    whose = "" if finding.authored else ", no kernel of the candidate's own"
    return f"{finding.what}, kernel {finding.kernel}{where}{times}{whose}"
