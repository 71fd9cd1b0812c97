"""How verbs print: tables as reports have them (report/layout.py), or JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from fastkernels.cli import options

json_option = options.written("--json", "json_path", text="Write JSON to this file; `-` is stdout.")


def emit_json(value: Any, path: str) -> None:
    """Indented JSON to a file, or to stdout for `-`."""
    from fastkernels.report import files  # not for `--help`

    files.write(json.dumps(value, indent=2) + "\n", path, "--json")


def heading(text: str) -> None:
    """A title between blocks of output."""
    click.secho(f"\n{text}", bold=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under column names, without the columns that are empty; numbers to the right."""
    from fastkernels.report import layout  # not for `--help`

    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    right = [all(map(_is_number, column)) for column in zip(*cells)]
    heads = [layout.Column(name, "", is_right) for name, is_right in zip(columns, right)]
    layout.show([layout.table(heads, cells)], sys.stdout)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "", 1).isdigit()


def folded(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table of texts, which go over several lines where they are longer than their room, in a pipe too."""
    from fastkernels.report import layout  # not for `--help`

    heads = [layout.Column(name, "", right=False) for name in columns]
    layout.show([layout.table(heads, [[str(cell) for cell in row] for row in rows])], sys.stdout, fold=True)
