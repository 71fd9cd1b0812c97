"""What is going on, on stderr: a live line on a terminal, one plain line for each step elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import click


@contextlib.contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """`tell(text)` shows the step that begins, with the seconds since the start."""
    begin = time.monotonic()
    if not sys.stderr.isatty():
        yield lambda text: click.echo(f"[{time.monotonic() - begin:5.0f} s] {text}", err=True)
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(f"{text}  [dim]{time.monotonic() - begin:.0f} s[/dim]")
