"""The process that judges a part on a node, without Ray."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from fastkernels.cluster import judge
from fastkernels.cluster.judge import INTERRUPTED, Task
from fastkernels.cluster.kernels import KernelsPart
from fastkernels.cluster.schedule import Problem
from fastkernels.cluster.sent import packed
from fastkernels.loader.candidates import discover
from fastkernels.loader.digest import files_of
from fastkernels.runner.kernel_trial.request import KernelsRequest

WRONG = Path(__file__).parents[3] / "tests" / "candidates" / "zeros"
CASE = "llama-tiny-T16-D64-f32"


def asked(part: KernelsPart, **facts) -> subprocess.CompletedProcess[bytes]:
    [candidate] = discover([WRONG])
    task = Task(**{
        "body": pickle.dumps(part),
        "candidate": pickle.dumps(packed(candidate)),
        "parent": os.getpid(),
        **facts,
    })  # fmt: skip
    command = [sys.executable, "-m", "fastkernels.cluster.judge"]
    return subprocess.run(command, input=pickle.dumps(task), capture_output=True, check=False)


def part(task: str = "L1/rms_norm", **flags) -> KernelsPart:
    usual = {"size": "tiny", "device": "cpu", "budget_s": 0.1, "compile_check": False, "seed": 3}
    request = KernelsRequest(**{**usual, **flags}).resolved()
    return KernelsPart(request, "my zeros", task, frozenset({("default", CASE)}))


def test_a_part_is_judged_as_it_would_be_here_and_speaks_of_its_owners_files() -> None:
    core = max(os.sched_getaffinity(0))
    done = asked(part(), cores=(core,))
    assert done.returncode == 0, done.stderr.decode()
    report = pickle.loads(done.stdout)
    [row] = report.rows
    assert (row.candidate, row.task, row.case) == ("my zeros", "L1/rms_norm", CASE)
    assert row.verdict == "WRONG(value)"
    [candidate] = discover([WRONG])
    assert [row.failure.file, *report.candidates[0].folders] == [
        str(candidate.files["L1/rms_norm"].relative_to(Path.cwd())),
        str(WRONG.relative_to(Path.cwd())),
    ]
    assert report.candidates[0].sha256 == files_of(candidate).sha256
    assert report.environment.cores == 1
    assert "fk-judge" not in report.model_dump_json()


def test_an_error_is_an_answer(monkeypatch) -> None:
    monkeypatch.chdir(Path.cwd())
    answer = judge._answer(Task(pickle.dumps(part(task="L1/nosuch"))))
    assert isinstance(answer, Problem)
    assert answer.error.exit_code == 2
    assert "nosuch" in answer.message


def test_files_that_judge_are_those_that_the_run_began_with(monkeypatch) -> None:
    monkeypatch.chdir(Path.cwd())
    answer = judge._answer(Task(pickle.dumps(part()), code="of other files"))
    assert isinstance(answer, Problem)
    assert answer.error.exit_code == 3
    assert "changed during the run" in answer.message


def test_who_started_it_is_gone_before_it_began() -> None:
    done = asked(part(), parent=os.getpid() + 1)
    assert (done.returncode, done.stdout) == (INTERRUPTED, b"")
