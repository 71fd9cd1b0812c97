"""`fk` as the tests of whole runs call it.

    done = called(folder, "kernels", ...)     in this process
    done = started(folder, "kernels", ...)    in a process of its own, as from a shell

In this process PyTorch is there already, and so are the templates that workers of an earlier call were forked
from: that is half of a small run. Workers are processes either way, separated alike. What only a process of
its own shows, the status that a shell sees, is asserted of `started` once for every way in which a verb ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from fastkernels.cli import main
from fastkernels.records import EvalReport


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def settings(folder: Path) -> dict[str, str]:
    return {"FK_STATE_DIR": str(folder), "FK_TRACKING": "false", "OMP_NUM_THREADS": "1"}


def called(folder: Path, *arguments: str, cwd: Path | None = None) -> Done:
    """An exception that `fk` would show as a traceback is raised here."""
    with pytest.MonkeyPatch.context() as patch:
        if cwd is not None:
            patch.chdir(cwd)
        found = CliRunner(env=settings(folder), catch_exceptions=False).invoke(
            main, arguments, prog_name="fk"
        )
    return Done(found.exit_code, found.stdout, found.stderr)


def started(folder: Path, *arguments: str, cwd: Path | None = None) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "fastkernels", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **settings(folder)},
        cwd=cwd,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def reported(
    run: Run, folder: Path, verb: str, *arguments: str, cwd: Path | None = None
) -> tuple[Done, dict]:
    """The finished command and its JSON report ({} without one)."""
    path = folder / "report.json"
    path.unlink(missing_ok=True)
    done = run(folder, verb, "--json", str(path), *arguments, cwd=cwd)
    return done, json.loads(path.read_text()) if path.exists() else {}


def evaluate(folder: Path, *arguments: str, run: Run = called) -> tuple[Done, dict]:
    return reported(run, folder, "eval", *arguments)


def gate(folder: Path, *arguments: str, cwd: Path | None = None, run: Run = called) -> tuple[int, dict, str]:
    """Exit code, the JSON report, and everything printed."""
    done, report = reported(run, folder, "gate", "--device", "cpu", *arguments, cwd=cwd)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, report, done.stdout + done.stderr


def assert_good(done: Done, report: dict) -> None:
    """Exit 0; or 3, on a machine too busy to say how fast, which the report then shows."""
    assert report, done.stderr
    unstable = any(w.unstable for m in EvalReport.model_validate(report).models for w in m.workloads)
    assert done.returncode == (3 if unstable else 0), done.stderr
