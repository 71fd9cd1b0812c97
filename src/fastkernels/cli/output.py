"""How verbs print: rich tables on a terminal, plain aligned text in pipes, JSON on request.

Plain text is never cut to a width: what is piped is meant to be searched.
"""

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
    """Rows under column names; numbers to the right."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(columns))]
    if sys.stdout.isatty():
        _rich_table(columns, cells, right)
    else:
        _plain_table(columns, cells, right)


def _rich_table(columns: Sequence[str], cells: list[list[str]], right: list[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for name, is_right in zip(columns, right):
        grid.add_column(name, justify="right" if is_right else "left", overflow="fold")
    for row in cells:
        grid.add_row(*map(Text, row))
    Console().print(grid)


def _plain_table(columns: Sequence[str], cells: list[list[str]], right: list[bool]) -> None:
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        padded = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right)
        )
        click.echo("  ".join(padded).rstrip())


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "", 1).isdigit()
