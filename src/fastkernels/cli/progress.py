"""What is going on, on stderr: a bar on a terminal, a plain line now and then elsewhere. Both estimate what
remains.

with showing() as show:
    show("loading")                     a step that nobody can count
    show(Progress(3, 12, "case 4"))     three of twelve are done, and the fourth begins
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import click

from fastkernels.progress import Progress, Show

_SECONDS_BETWEEN_LINES = 5  # of plain output: a log wants signs of life, not every step
_SECONDS_UNCHANGED = 30  # until a step that goes on is told again


def saying(text: str) -> None:
    """Show what is known before anything runs, at once and to stay."""
    click.echo(text, err=True)


@contextlib.contextmanager
def showing(quiet: bool = False) -> Iterator[Show]:
    """`show(step)`: what goes on from now. `quiet`: nothing is shown of it."""
    if quiet:
        yield lambda step: None
        return
    with (_bar if sys.stderr.isatty() else _lines)(Pace()) as show:
        yield show


class Pace:
    """The step that goes on, and how long the others will take if they take as long as those before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = self._since = self._ended_at = clock()  # of the run; of the count; of the last step
        self._first = 0  # steps that were done when the count began
        self.step = Progress(0, 0, "starting")

    def take(self, step: Progress | str) -> None:
        """The step that begins now. A count that runs back, or of another total, is a new one."""
        if isinstance(step, str):
            step = Progress(self.step.done, self.step.total, step)
        if step.total != self.step.total or step.done < self.step.done:
            self._since = self._ended_at = self._clock()
            self._first = step.done
        elif step.done > self.step.done:
            self._ended_at = self._clock()
        self.step = step

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._begin

    @property
    def left_s(self) -> float | None:
        """None before the first step has ended, and where none is left or nobody counts them."""
        ended, left = self.step.done - self._first, self.step.total - self.step.done
        if ended < 1 or left < 1:
            return None
        each = (self._ended_at - self._since) / ended
        # A step that takes longer than the others has no time left: what remains are the steps behind it.
        return each * (left - 1) + max(0.0, each - (self._clock() - self._ended_at))

    @property
    def told(self) -> str:
        """`12 s, about 3 min left`"""
        left_s = self.left_s
        return f"{self.elapsed_s:.0f} s" + ("" if left_s is None else f", about {_rough(left_s)} left")


def _rough(seconds: float) -> str:
    """An estimate is not known to the second."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if seconds >= 90 else f"{seconds:.0f} s"


@contextlib.contextmanager
def _bar(pace: Pace) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Times(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            return Text(pace.told, style="progress.remaining")

    columns = (
        BarColumn(20),
        TextColumn("{task.fields[count]}"),
        Times(),
        TextColumn("{task.description}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("starting", total=None, count="")

        def show(step: Progress | str) -> None:
            pace.take(step)
            now = pace.step
            bar.update(
                line, completed=now.done, total=now.total or None, description=now.text, count=_count(now)
            )

        yield show


@contextlib.contextmanager
def _lines(pace: Pace) -> Iterator[Show]:
    """A thread prints them, so that a step that never ends is seen, too."""
    ended = threading.Event()

    def tell() -> None:
        printed, last_s = "", 0.0
        while not ended.wait(_SECONDS_BETWEEN_LINES):
            text = f"{_count(pace.step)} {pace.step.text}".strip()
            if text != printed or pace.elapsed_s - last_s >= _SECONDS_UNCHANGED:
                printed, last_s = text, pace.elapsed_s
                click.echo(f"[{pace.told:>5}] {text}", err=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield pace.take
    finally:
        ended.set()
        thread.join()


def _count(step: Progress) -> str:
    return f"{step.done}/{step.total}" if step.total else ""
