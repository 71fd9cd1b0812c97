"""Signals are heeded once, not amid what tidies up, and not at all where they are ignored."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from fastkernels import interrupts

pytestmark = pytest.mark.usefixtures("heeds_signals")


def test_what_tidies_up_is_not_interrupted_but_what_follows_is() -> None:
    done = []

    @interrupts.held()
    def inner() -> None:
        signal.raise_signal(signal.SIGTERM)
        done.append("inner")

    @interrupts.held()
    def outer() -> None:
        inner()
        done.append("outer")

    with interrupts.heeded():
        with pytest.raises(KeyboardInterrupt):
            outer()
        outer()
    assert done == ["inner", "outer"] * 2, "the second signal interrupts nothing"


def test_only_the_first_interrupts(capfd: pytest.CaptureFixture[str]) -> None:
    with interrupts.heeded():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert "what was finished is reported" in capfd.readouterr().err
    with interrupts.heeded(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.heeded():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_that_gets_no_signals_changes_nothing() -> None:
    before, done = signal.getsignal(signal.SIGTERM), []

    def body() -> None:
        with interrupts.heeded(), interrupts.held():
            done.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [before]


CLOSED = """
import os, signal, sys
from pathlib import Path
from fastkernels import interrupts
with interrupts.heeded():
    try:
        os.write(1, b"ready")
        signal.pause()
    except KeyboardInterrupt:
        print("a table", flush=True)
        print("a warning", file=sys.stderr, flush=True)
        Path(sys.argv[1]).write_text("whole")
"""


def test_a_closed_terminal_takes_no_report_with_it(tmp_path: Path) -> None:
    """What is printed after that would be an error, before the report is written."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CLOSED, str(tmp_path / "report")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    assert os.read(ours, 5) == b"ready"
    os.close(ours)
    assert process.wait(timeout=30) == 0
    assert (tmp_path / "report").read_text() == "whole"
