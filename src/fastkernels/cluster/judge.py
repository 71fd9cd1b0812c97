"""The process that judges a part on a node, as `fk` is the process of a run here:

    python -m fastkernels.cluster.judge < task > answer

The task is pickled: `Task`. So is the answer: a report, facts, or a Problem. Interrupted, or with its parent
gone, it ends its workers and answers nothing. Exit status 0 with an answer, 130 interrupted.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastkernels import interrupts
from fastkernels.cluster import sent
from fastkernels.cluster.facts import code
from fastkernels.cluster.schedule import Problem
from fastkernels.errors import FastKernelsError, MachineError
from fastkernels.records import Record

INTERRUPTED = 130
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """`body` and `candidate` are pickled already, so that whoever hands them on need not know them. `cores`:
    all that this process and its workers may use; None: those of the parent. `code`: of the files that judged
    when the run began (facts.py)."""

    body: bytes  # of what has judge(candidate)
    candidate: bytes | None = None  # a sent.Sent
    cores: tuple[int, ...] | None = None
    parent: int = 0
    code: str | None = None


def main() -> None:
    task = pickle.load(sys.stdin.buffer)
    _end_with(task.parent)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    if task.cores is not None:
        os.sched_setaffinity(0, task.cores)  # before PyTorch counts them
    try:
        with interrupts.heeded():
            answer = _answer(task)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    with answers:
        pickle.dump(answer, answers)


def _end_with(parent: int) -> None:
    """As Ctrl-C does, when the parent has ended: Ray ends its own processes and knows nothing of this one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(INTERRUPTED)


def _answer(task: Task) -> Any:
    body = pickle.loads(task.body)
    candidate = pickle.loads(task.candidate) if task.candidate is not None else None
    with tempfile.TemporaryDirectory(prefix="fk-judge-") as folder:
        root = Path(folder).resolve()
        (root / "cwd").mkdir()
        os.chdir(root / "cwd")  # no settings of whoever started Ray, and no short names for what lies here
        try:
            if task.code not in (None, code()):
                raise MachineError(
                    "files of fastkernels, the registry or the baseline changed during the run"
                )
            found = body.judge(sent.unpacked(candidate, root) if candidate else None)
        except FastKernelsError as error:
            found = Problem.of(error)
        if not getattr(found, "complete", True) and not getattr(found, "failed_fast", False):
            raise KeyboardInterrupt  # the part's report has what was finished: another attempt has all
        return _renamed(found, sent.where_it_lies(candidate, root)) if candidate else found


def _renamed(report: Any, names: Mapping[str, str]) -> Any:
    """The same record, in which folders of this machine have their owner's names."""
    if not isinstance(report, Record):
        return report

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            for here, there in names.items():
                value = value.replace(here, there)
            return value
        if isinstance(value, dict):
            return {key: renamed(of) for key, of in value.items()}
        return tuple(map(renamed, value)) if isinstance(value, tuple | list) else value

    return type(report).model_validate(renamed(report.model_dump(by_alias=True)))


if __name__ == "__main__":
    main()
