"""How verbs print: tables as reports have them (report/layout.py), or JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from fastkernels.cli import options

_LEAST = 12  # characters that a cut text keeps

json_option = options.written("--json", "json_path", text="Write JSON to this file; `-` is stdout.")


def emit_json(value: Any, path: str) -> None:
    """Indented JSON to a file, or to stdout for `-`."""
    from fastkernels.report import files  # not for `--help`

    files.write(json.dumps(value, indent=2) + "\n", path, "--json")


def heading(text: str) -> None:
    """A title between blocks of output."""
    click.secho(f"\n{text}", bold=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], whole: str | None = None) -> None:
    """Rows under column names, without the columns that are empty; numbers to the right. `whole`: where the
    text of cells is whole; with it a row has one line of a terminal, and what found no room an ellipsis."""
    from fastkernels.report import layout  # not for `--help`

    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    right = [all(map(_is_number, column)) for column in zip(*cells)]
    if is_cut := whole is not None and sys.stdout.isatty():
        cells, is_cut = _cut([[*columns], *cells], right, layout.room(sys.stdout))
    heads = [layout.Column(name, "", is_right) for name, is_right in zip(columns, right)]
    layout.show([layout.table(heads, cells)], sys.stdout)
    if is_cut:
        click.secho(f"…: whole by {whole}", dim=True)


def _cut(rows: list[list[str]], right: Sequence[bool], room: int) -> tuple[list[list[str]], bool]:
    """Rows behind the first, the names of columns, in so many characters, and whether one was cut: the widest
    texts first."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    texts = [i for i, is_right in enumerate(right) if i and not is_right]  # the first says which row it is
    whole = sum(widths)
    while texts and sum(widths) + 2 * len(widths) > room and max(widths[i] for i in texts) > _LEAST:
        widths[max(texts, key=lambda i: widths[i])] -= 1
    cut = [
        [cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell, width in zip(row, widths)]
        for row in rows[1:]
    ]
    return cut, sum(widths) < whole


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "", 1).isdigit()


def folded(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table of texts, which go over several lines where they are longer than their room, in a pipe too."""
    from fastkernels.report import layout  # not for `--help`

    heads = [layout.Column(name, "", right=False) for name in columns]
    layout.show([layout.table(heads, [[str(cell) for cell in row] for row in rows])], sys.stdout, fold=True)
