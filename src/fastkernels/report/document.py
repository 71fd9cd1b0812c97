"""A page as data: sections of tables, charts and text, which html.py, markdown.py and a terminal render.

What is only drawn (charts, bars in cells) stands beside a table with the same numbers: Markdown and terminals
leave it out, and lose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from fastkernels.report import layout
from fastkernels.report.layout import Column, heading, indented

_MOST_FOLDED = 10  # blocks of a fold, on a terminal


@dataclass(frozen=True)
class Bar:
    """A cell: a ratio about 1 on a logarithmic scale that its table shares. `ends`: its interval; `mean`: a
    mark beside it, of its group. `tone`: good or bad where it is so beyond the noise."""

    value: float
    ends: tuple[float, float] | None = None
    mean: float | None = None
    tone: str = ""


Cell = str | Text | Bar


@dataclass(frozen=True)
class Grid:
    """A table. `name` is what a screen reader announces."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    tone: str
    told: str  # on hovering


@dataclass(frozen=True)
class Line:
    """y = slope x."""

    slope: float
    label: str


@dataclass(frozen=True)
class Scatter:
    """Points on two logarithmic axes. `told`: what one sees in it, for who does not."""

    name: str
    x: str
    y: str
    points: Sequence[Point]
    lines: Sequence[Line]
    told: str


@dataclass(frozen=True)
class Code:
    """Words of a candidate, or a command: as they are."""

    text: str


@dataclass(frozen=True)
class Fold:
    summary: str
    blocks: Sequence[Block]


Block = str | Text | Grid | Scatter | Code | Fold


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]
    level: int = 2


@dataclass(frozen=True)
class Document:
    """`warnings`: what keeps it from being a result of a GPU, or from being whole."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    warnings: Sequence[str] = ()


def parts(document: Document, room: int | None = None) -> list[RenderableType]:
    """For a terminal; `room`: the characters that tables keep to (layout.fitting), None for all columns."""
    found: list[RenderableType] = [Text(document.title, style="bold"), *map(Text, document.lead)]
    found += [Text(line, style="bold yellow") for line in document.warnings]
    for section in document.sections:
        found += [heading(section.title), *_blocks(section.blocks, room)]
    return found


def _blocks(blocks: Sequence[Block], room: int | None) -> list[RenderableType]:
    found: list[RenderableType] = []
    for block in blocks:
        if isinstance(block, Grid):
            rows = [["" if isinstance(cell, Bar) else cell for cell in row] for row in block.rows]
            columns, rows, out = layout.fitting(block.columns, rows, room)
            found += [layout.table(columns, rows), *layout.legend(columns, rows), *layout.left_out(out)]
        elif isinstance(block, Fold):
            found += [Text(block.summary), indented(*_blocks(block.blocks[:_MOST_FOLDED], room))]
            if (more := len(block.blocks) - _MOST_FOLDED) > 0:
                found.append(indented(Text(f"... and {more} more: fk report --html shows them")))
        elif isinstance(block, Code):
            found.append(indented(Text(block.text)))
        elif not isinstance(block, Scatter):
            found.append(Text(block) if isinstance(block, str) else block)
    return found
