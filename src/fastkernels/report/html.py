"""A document as one HTML file: no script, no network, light and dark, reachable by keyboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from rich.text import Text

from fastkernels import __version__
from fastkernels.report import charts, layout
from fastkernels.report.document import Bar, Cell, Document, Grid, Section
from fastkernels.report.layout import Column

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_LONG = 60  # characters of a cell that is folded
# Light and dark. Text has a contrast of at least 4.5 on page and panel, what is drawn one of 3 (a test).
PALETTE = {
    "page": ("#ffffff", "#14171c"),
    "panel": ("#f4f6f8", "#1e232b"),
    "rule": ("#d3d9e0", "#363e4a"),
    "text": ("#1a1f26", "#e8ebef"),
    "quiet": ("#566070", "#a3adba"),
    "link": ("#0b5cad", "#78b4f5"),
    "good": ("#136f3a", "#5fc98a"),
    "bad": ("#b3261e", "#ff8a80"),
    "warn": ("#8a5300", "#f0b652"),
    "same": ("#6b7686", "#8f9bab"),
}
_TONES = {"green": "good", "red": "bad", "yellow": "warn", "cyan": "info"}


@dataclass(frozen=True)
class _Shown:
    """A table's columns that have a cell in them, and cells as the template wants them."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[dict[str, Any]]]
    legend: Sequence[tuple[str, str]]


def text(document: Document) -> str:
    """The whole page. Sections of level 3 are folded in the one of level 2 before them."""
    sections: list[tuple[str, Section, list[Section]]] = []
    for section in document.sections:
        if section.level == 2:
            sections.append((f"s{len(sections) + 1}", section, []))
        else:
            sections[-1][2].append(section)
    return _template().render(page=document, sections=sections, palette=PALETTE, version=__version__)


@lru_cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "shown": _shown,
        "tone": _tone,
        "kind": lambda block: type(block).__name__,
        "scatter": lambda chart: Markup(charts.scatter(chart)),
    }
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def _shown(grid: Grid) -> _Shown:
    # A drawn cell is never empty.
    used = layout.used(grid.columns, [["|" if isinstance(c, Bar) else c for c in row] for row in grid.rows])
    columns = [grid.columns[i] for i in used]
    reach = charts.reach(cell for row in grid.rows for cell in row if isinstance(cell, Bar))
    rows = [[_cell(row[i], grid.columns[i], reach) for i in used] for row in grid.rows]
    return _Shown(columns, rows, [(c.name, c.legend) for c in columns if c.legend])


def _cell(cell: Cell, column: Column, reach: float) -> dict[str, Any]:
    if isinstance(cell, Bar):
        return {"text": Markup(charts.bar(cell, reach)), "classes": ""}
    plain = cell.plain if isinstance(cell, Text) else cell
    classes = [
        _tone(cell) if isinstance(cell, Text) else "",
        "right" if column.right else "",
        "long" if len(plain) > _LONG else "",
    ]
    return {"text": plain, "classes": " ".join(filter(None, classes))}


def _tone(said: Text) -> str:
    """The class of a terminal's style: `bold red` is `bad strong`."""
    words = str(said.style).split()
    found = [_TONES[word] for word in words if word in _TONES]
    return " ".join([*found, *(["strong"] if "bold" in words else [])])
