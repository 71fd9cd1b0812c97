"""From rows of cells to text: rich tables on a terminal, plain aligned text in pipes, never cut to a
width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fastkernels.records import (
    AuditRow,
    Environment,
    EvalReport,
    GateReport,
    GateRow,
    KernelReport,
    KernelRow,
    Report,
)

CPU_WARNING = "CPU: not a GPU result"
INTERRUPTED = "INTERRUPTED: what was finished until then"
FAILED_FAST = "STOPPED at the first failure (--fail-fast): later trials were not made"
ROOM = 100  # characters that tables of results keep to, where the names in them allow it
_GAP = 2  # between columns
_PIPE_WIDTH = 10_000  # wider than any table: what is piped is meant to be searched


@dataclass(frozen=True)
class Column:
    """`legend` says what the column means; it is printed once, below the tables. `needed`: shown however
    narrow the room is."""

    name: str
    legend: str
    right: bool = True
    needed: bool = True


def more(name: str, legend: str, right: bool = True) -> Column:
    """A column that is shown where there is room."""
    return Column(name, legend, right, needed=False)


Rows = Sequence[Sequence[str | Text]]


def table(columns: Sequence[Column], rows: Rows) -> RenderableType:
    """The columns that have a cell in them."""
    kept = used(columns, rows)
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for i in kept:
        grid.add_column(columns[i].name, justify="right" if columns[i].right else "left", overflow="fold")
    for row in rows:
        cells = (row[i] for i in kept)
        grid.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return grid


def legend(columns: Sequence[Column], rows: Rows) -> list[RenderableType]:
    """What the columns that have a cell in them mean."""
    shown = (columns[i] for i in used(columns, rows))
    return [Text(f"{column.name}: {column.legend}", style="dim") for column in shown if column.legend]


def fitting(columns: Sequence[Column], rows: Rows, room: int | None) -> tuple[Sequence[Column], Rows, str]:
    """Columns and rows without those columns, the last first, that are not needed and for which `room`
    characters are too few (None: enough for all), and the names of what was left out."""
    shown = used(columns, rows)
    width = {i: max(len(columns[i].name), *(len(row[i]) for row in rows)) + _GAP for i in shown}
    out = set()
    for i in reversed(shown):
        if room is None or sum(width.values()) - _GAP <= room:
            break
        if not columns[i].needed:
            del width[i]
            out.add(i)
    kept = [i for i in range(len(columns)) if i not in out]
    names = ", ".join(columns[i].name for i in sorted(out))
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows], names


def left_out(*names: str) -> list[RenderableType]:
    """How to see the columns that found no room; nothing without any."""
    found = [name for name in names if name]
    told = f"no room for: {'; '.join(found)}. See them with --verbose, or in the page of fk report --html"
    return [Text(told, style="dim")] if found else []


def room(stream: TextIO) -> int:
    """Characters of a line: a terminal's own where it is wider than most."""
    return max(ROOM, Console(file=stream).width) if stream.isatty() else ROOM


def used(columns: Sequence[Column], rows: Rows) -> list[int]:
    """Which columns have a cell in them."""
    return [i for i in range(len(columns)) if any(len(row[i]) for row in rows)]


def number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def interval(ends: tuple[float, float] | None) -> str:
    return f"{ends[0]:.3f} .. {ends[1]:.3f}" if ends else ""


def task_name(row: KernelRow | GateRow | AuditRow) -> str:
    """`L1/glu:gelu`"""
    return f"{row.task}:{row.variant}".removesuffix(":default")


def title_of(report: Report) -> str:
    """What was run, and where."""
    device = report.environment.device
    if isinstance(report, EvalReport):
        return f"fk eval on {device}: {', '.join(report.candidates) or 'self-test'}"
    if isinstance(report, GateReport):
        return f"fk gate on {device}: {report.head} over {report.base}"
    if isinstance(report, KernelReport):
        return f"fk kernels on {device}: {', '.join(dict.fromkeys(row.candidate for row in report.rows))}"
    return f"fk {report.kind} on {device}"


def made(environment: Environment) -> str:
    """Machine, version, hour and revision."""
    revision = f", revision {environment.git_revision[:12]}" if environment.git_revision else ""
    return f"{environment.device}, torch {environment.torch}, {environment.started_at[:16]}{revision}"


def opening(title: str, report: KernelReport | EvalReport, lines: Sequence[str]) -> list[RenderableType]:
    """What was run and how, and what keeps it from being a result."""
    found = [Text(title, style="bold"), *map(Text, lines)]
    if report.environment.device_type == "cpu":
        found.append(Text(CPU_WARNING, style="bold yellow"))
    if told := ended_early(report):
        found.append(Text(told, style="bold red"))
    return [*found]


def ended_early(report: Report) -> str | None:
    if report.complete:
        return None
    return FAILED_FAST if isinstance(report, KernelReport) and report.failed_fast else INTERRUPTED


def foot(environment: Environment) -> list[RenderableType]:
    """Versions, and what separated the workers."""
    known = ("torch", environment.torch), ("triton", environment.triton), ("driver", environment.driver)
    versions = [f"{name} {version}" for name, version in known if version]
    return [
        Text(", ".join([*versions, f"Python {environment.python}"]), style="dim"),
        *separation(environment.isolation),
    ]


def separation(levels: Sequence[str]) -> list[Text]:
    """What separated the workers of a run; nothing where it has none."""
    return [Text(f"workers are separated by: {', '.join(levels)}", style="dim")] if levels else []


def grouped(notes: Iterable[str]) -> list[str]:
    """Notes `place: what`: those of several places that say the same are one, with the first place and the
    number of others."""
    places: dict[str, list[str]] = {}
    for note in notes:
        place, colon, what = note.partition(": ")
        places.setdefault(what if colon else note, []).append(place if colon else "")
    found = []
    for what, at in places.items():
        others = f" and {len(at) - 1} more" if len(at) > 1 else ""
        found.append(f"{at[0]}{others}: {what}" if at[0] else what)
    return found


def heading(text: str) -> RenderableType:
    return Text(f"\n{text}", style="bold")


def indented(*parts: RenderableType) -> RenderableType:
    return Padding(Group(*parts), (0, 0, 0, 2))


def show(parts: Sequence[RenderableType], stream: TextIO, *, fold: bool = False) -> None:
    """Print to `stream`, with colours and folding on a terminal; fold: folded elsewhere, too."""
    if stream.isatty():
        Console(file=stream).print(*parts, sep="\n")
    else:
        stream.write(plain(parts, ROOM if fold else _PIPE_WIDTH))
    stream.flush()


def plain(parts: Sequence[RenderableType], width: int = _PIPE_WIDTH) -> str:
    """Text without colours and trailing blanks."""
    buffer = StringIO()
    console = Console(file=buffer, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
