"""Signs of life on a log: also of a step that never ends."""

from __future__ import annotations

import time

import pytest

from fastkernels.cli import progress


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.02)
    monkeypatch.setattr(progress, "_SECONDS_UNCHANGED", 0.1)


def test_a_step_that_goes_on_is_told_again(often: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.telling() as tell:
        tell("case 1")
        deadline = time.monotonic() + 20
        lines: list[str] = []
        while len(lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
            lines += [line for line in capsys.readouterr().err.splitlines() if line.endswith("case 1")]
    assert len(lines) == 2


def test_nothing_is_told_once_the_work_is_over(often: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.telling() as tell:
        tell("case 1")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""
