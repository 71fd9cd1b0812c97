"""Signs of life, also of a step that never ends, and the estimate of what remains."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest

from fastkernels.cli import progress
from fastkernels.progress import Progress


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.02)
    monkeypatch.setattr(progress, "_SECONDS_UNCHANGED", 0.1)


def test_a_step_that_goes_on_is_told_again(often: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.showing() as show:
        show(Progress(1, 3, "case 1"))
        deadline = time.monotonic() + 20
        lines: list[str] = []
        while len(lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
            lines += [line for line in capsys.readouterr().err.splitlines() if line.endswith("] 1/3 case 1")]
    assert len(lines) == 2


def test_nothing_is_told_once_the_work_is_over_or_of_a_quiet_run(
    often: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.showing() as show:
        show("case 1")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""
    with progress.showing(quiet=True) as show:
        show("case 1")
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_remains_takes_as_long_as_what_was_done() -> None:
    clock = Clock()
    pace = progress.Pace(clock)
    pace.take(Progress(0, 5, "a"))
    clock.now += 7
    assert (pace.left_s, pace.told) == (None, "7 s"), "no step has ended"
    clock.now += 33
    pace.take(Progress(2, 5, "c"))
    assert (pace.left_s, pace.told) == (60, "40 s, about 60 s left")
    clock.now += 5
    assert pace.left_s == 55
    clock.now += 1000
    assert pace.left_s == 40, "of a step that takes longer than the others nothing is known"
    pace.take("still c")
    assert pace.step == Progress(2, 5, "still c")
    pace.take(Progress(0, 300, "another count"))
    assert pace.left_s is None
    clock.now += 60
    pace.take(Progress(1, 300, "b"))
    assert pace.told.endswith(", about 4 h 59 min left")
    pace.take(Progress(300, 300, "done"))
    assert pace.left_s is None


def test_a_bar_on_a_terminal_has_the_count_and_what_remains() -> None:
    code = (
        "from fastkernels.cli.progress import showing\n"
        "from fastkernels.progress import Progress\n"
        "import time\n"
        "with showing() as show:\n"
        "    show(Progress(0, 4, 'case [a]'))\n"
        "    time.sleep(0.2)\n"
        "    show(Progress(3, 4, 'case [b]'))\n"
        "    time.sleep(1)\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # Linux says so at the end of a terminal
        pass
    os.close(ours)
    assert process.wait() == 0
    shown = seen.decode()
    assert "3/4" in shown
    assert "case [b]" in shown
    assert " s left" in shown
