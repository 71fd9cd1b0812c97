"""What NVIDIA's tools said of candidates, as tables: Nsight Compute and compute-sanitizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from fastkernels.records import Finding, KernelReport, Profile, Sanitized
from fastkernels.report.layout import Column, heading, indented, legend, number, table

_PROFILE = (
    Column("case", "", right=False),
    Column("candidate", "", right=False),
    Column("us", "time of the call's kernels under the profiler, from flushed caches"),
    Column("DRAM %", "bytes a second, of the memory's peak"),
    Column("L2 %", "of its peak"),
    Column("SM %", "the busiest unit of the multiprocessors, of its peak"),
    Column("occupancy %", "warps that were resident, of those that fit on the device"),
)


def profiles(found: Sequence[tuple[str, str, Profile]]) -> list[RenderableType]:
    """`(case, candidate, profile)`; nothing where none was made."""
    if not found:
        return []
    rows = [
        [
            case,
            candidate,
            format(profile.us, ".4g"),
            *(
                number(profile.mean(name), ".0f")
                for name in ("dram_pct", "l2_pct", "compute_pct", "occupancy_pct")
            ),
        ]
        for case, candidate, profile in found
    ]
    limits = [Text(f"{case}{f'  {who}' if who else ''}: {profile.limit}") for case, who, profile in found]
    return [
        heading("Nsight Compute"),
        table(_PROFILE, rows),
        Text(),
        *limits,
        Text(),
        *legend(_PROFILE, rows),
    ]


def of_report(report: KernelReport) -> list[RenderableType]:
    rows = [(f"{row.task} {row.case}", row.candidate, row.profile) for row in report.rows if row.profile]
    return [*profiles(rows), *_sanitized(report.sanitized)]


def _sanitized(found: Sequence[Sanitized]) -> Iterable[RenderableType]:
    if not found:
        return
    yield heading("Compute sanitizer")
    for one in found:
        said = one.problem or (f"{one.errors} errors, by kernel and line" if one.errors else "nothing found")
        style = "bold red" if any(f.authored for f in one.findings) else ""
        yield Text(f"{one.candidate}  {one.task} {one.case}  {one.tool}: {said}", style=style)
        if one.errors and not one.findings:
            yield indented(Text("none of them names a kernel: see compute-sanitizer's own output"))
        for finding in one.findings:
            yield indented(Text(_told(finding)))


def _told(finding: Finding) -> str:
    where = f" at {finding.file}:{finding.line}" if finding.file else ""
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    whose = "" if finding.authored else ", no kernel of the candidate's own"
    return f"{finding.what}, kernel {finding.kernel}{where}{times}{whose}"
