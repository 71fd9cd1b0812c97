"""What is going on, on stderr: a live line on a terminal, one plain line for each step elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import click

_SECONDS_BETWEEN_LINES = 5  # of plain output: a log wants signs of life, not every step
_SECONDS_UNCHANGED = 30  # until a step that goes on is told again


def saying(text: str) -> None:
    """Show what is known before anything runs, at once and to stay."""
    click.echo(text, err=True)


@contextlib.contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """`tell(text)` shows the step that begins, with the seconds since the start."""
    begin = time.monotonic()
    if not sys.stderr.isatty():
        with _sparsely(begin) as line:
            yield line
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
    if not sys.stderr.isatty():
        with _sparsely(time.monotonic()) as line:
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


@contextlib.contextmanager
def _sparsely(begin: float) -> Iterator[Callable[[str], None]]:
    """`line(text)`: what goes on from now. A thread prints it with the seconds since `begin`, so that a step
    that never ends is seen, too."""
    told, ended = ["starting"], threading.Event()

    def tell() -> None:
        printed, last = "", begin
        while not ended.wait(_SECONDS_BETWEEN_LINES):
            now = time.monotonic()
            if told[0] != printed or now - last >= _SECONDS_UNCHANGED:
                printed, last = told[0], now
                click.echo(f"[{now - begin:5.0f} s] {printed}", err=True)

    def line(text: str) -> None:
        told[0] = text

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield line
    finally:
        ended.set()
        thread.join()
