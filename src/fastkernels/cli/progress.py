"""What is going on, on stderr: a live line on a terminal, one plain line for each step elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import click

_SECONDS_BETWEEN_LINES = 5  # of plain output: a log wants signs of life, not every step


@contextlib.contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """`tell(text)` shows the step that begins, with the seconds since the start."""
    begin = time.monotonic()
    if not sys.stderr.isatty():
        yield _sparsely(begin)
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(f"{text}  [dim]{time.monotonic() - begin:.0f} s[/dim]")


class Step(Protocol):
    """Work done and in all, and what is going on."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def text(self) -> str: ...


@contextlib.contextmanager
def counting() -> Iterator[Callable[[Step], None]]:
    """`count(step)` moves a bar on a terminal, and prints a line now and then elsewhere."""
    begin = time.monotonic()
    if not sys.stderr.isatty():
        line = _sparsely(begin)
        yield lambda step: line(f"{step.done}/{step.total} {step.text}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=None)
        yield lambda step: progress.update(bar, completed=step.done, total=step.total, description=step.text)


def _sparsely(begin: float) -> Callable[[str], None]:
    """Print a line with the seconds since `begin`, unless one was printed a moment ago."""
    last = begin

    def line(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            click.echo(f"[{now - begin:5.0f} s] {text}", err=True)

    return line
