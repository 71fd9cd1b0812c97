"""A document as Markdown, for a comment on a pull request; and what such a comment must heed.

Words of a candidate (its messages, what it printed) are escaped and fenced in HTML: they can neither format
the comment nor mention anybody. A comment has a length. It is never cut within a row, a tag or an entity:
what does not fit is left out whole, and counted.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence

from fastkernels.report.document import Bar, Block, Code, Document, Fold, Grid, Scatter
from fastkernels.report.layout import used

MAX_CHARACTERS = 60_000  # GitHub takes 65,536 in a comment
_MOST_SAID = 600  # characters of one cell or note, before they are escaped
_OF_A_TABLE = 8_000  # characters, so that what follows a long one has room


def text(document: Document) -> str:
    """The whole comment, at most MAX_CHARACTERS long."""
    head = [f"### {plain(document.title)}\n\n"]
    head += [f"{plain(line)}\n\n" for line in document.lead]
    head += [f"**{plain(line)}.**\n\n" for line in document.warnings]
    found = "".join(head)
    parts = []
    for section in document.sections:
        blocks = [said for block in section.blocks if (said := _block(block))]
        title = f"{'#' * (section.level + 2)} {plain(section.title)}\n\n"
        parts += [title + blocks[0], *blocks[1:]] if blocks else []
    return found + whole(parts, MAX_CHARACTERS - len(found), "parts")


def _block(block: Block) -> str:
    if isinstance(block, Grid):
        return _table(block)
    if isinstance(block, Fold):
        inner = "".join(map(_block, block.blocks))
        return f"<details><summary>{plain(block.summary)}</summary>\n\n{inner}</details>\n\n"
    if isinstance(block, Code):
        return f"<pre>{code(block.text[:3000])}</pre>\n\n"
    return "" if isinstance(block, Scatter) else f"{plain(str(block))}\n\n"


def _table(grid: Grid) -> str:
    """The columns that have a cell with words in it."""
    rows = [["" if isinstance(cell, Bar) else str(cell) for cell in row] for row in grid.rows]
    kept = used(grid.columns, rows)
    if not kept:
        return ""
    head = _row([grid.columns[i].name for i in kept])
    head += f"|{'|'.join('--:' if grid.columns[i].right else '---' for i in kept)}|\n"
    return f"{head}{whole([_row([row[i] for i in kept]) for row in rows], _OF_A_TABLE, 'rows')}\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |\n"


def whole(parts: Sequence[str], room: int, what: str, most: int = sys.maxsize) -> str:
    """The first of `parts`, at most so many, that fit into `room`; how many are left out is said."""
    found = ""
    for number, part in enumerate(parts):
        more = f"\n… and {len(parts) - number} more {what}: see the JSON report\n\n"
        beside = len(more) if number + 1 < len(parts) else 0
        if number == most or len(found) + len(part) + beside > room:
            return found + more
        found += part
    return found


_SPECIAL = str.maketrans({c: f"&#{ord(c)};" for c in "|*_`[]~@#\\"})


def plain(text: str) -> str:
    """One line without any markup of its own."""
    text = text if len(text) <= _MOST_SAID else text[:_MOST_SAID] + "…"
    return " ".join(html.escape(text).split()).translate(_SPECIAL)


def code(text: str) -> str:
    """Inside <pre>: a blank line would end the HTML block, an @ would mention somebody."""
    lines = [line if line.strip() else "&nbsp;" for line in html.escape(text).splitlines()]
    return "\n".join(lines).replace("@", "&#64;").replace("`", "&#96;")
