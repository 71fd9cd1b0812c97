"""The examples for CI: their commands exist, and the hook lets through what the gate passes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fastkernels.cli.gate import command
from tests.unit.gate.repositories import ROOT, commit, git

CI = ROOT / "examples" / "ci"
OPTIONS = {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(
    "file", [CI / "gate.yml", CI / "pre-push", ROOT / "docs" / "gates.md"], ids=lambda f: f.name
)
def test_every_flag_exists(file: Path) -> None:
    text = file.read_text().replace("\\\n", " ")
    calls = [line for line in text.splitlines() if re.search(r"\bfk gate\b", line)]
    flags = {
        flag for line in calls for flag in re.findall(r"(?<!\S)`?(--[a-z-]+)", line.partition("fk gate")[2])
    }
    assert calls
    assert flags, calls
    assert flags <= OPTIONS


def test_the_workflow_is_one_and_needs_all_commits() -> None:
    workflow = yaml.safe_load((CI / "gate.yml").read_text())
    steps = workflow["jobs"]["gate"]["steps"]
    assert steps[0]["with"]["fetch-depth"] == 0
    assert workflow["concurrency"] == {"group": "gate-gpu", "queue": "max"}, (
        "no gate waits for another in vain"
    )
    assert "pull_request_target" not in workflow[True], "YAML reads `on` as a truth"
    assert sum("fk gate" in step.get("run", "") for step in steps) == 1


@pytest.fixture
def pushed(tmp_path: Path):
    """`push(code)` runs the hook for the last commit beside a fake fk that exits with `code`."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch", "trunk")
    commit(repository, "first")
    (repository / "candidates").mkdir(parents=True)
    (repository / "candidates" / "file.py").write_text("x = 1\n")
    commit(repository, "second")
    commit(repository, "third")
    programs = tmp_path / "programs"
    programs.mkdir()

    def push(code: int, base: str = "first") -> tuple[int, str, list[str]]:
        log = tmp_path / "log"
        log.write_text("")
        fk = programs / "fk"
        fk.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexit {code}\n')
        fk.chmod(0o755)
        head, remote = git(repository, "rev-parse", "third"), git(repository, "rev-parse", base)
        done = subprocess.run(
            ["sh", str(CI / "pre-push"), "origin", "url"], cwd=repository, capture_output=True, text=True,
            input=f"refs/heads/trunk {head} refs/heads/trunk {remote}\n", check=False,
            env={"PATH": f"{programs}:{Path(shutil.which('git') or '').parent}:/usr/bin:/bin"},
        )  # fmt: skip
        calls = [line.replace(remote, base) for line in log.read_text().splitlines()]
        return done.returncode, done.stderr, calls

    return push


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 1), (2, 1), (3, 0)])
def test_the_hook_stops_what_the_gate_stops(pushed, code: int, status: int) -> None:
    found, printed, calls = pushed(code)
    assert calls == ["gate candidates --base first"]
    assert found == status
    assert ("unclear" in printed) == (code == 3)


def test_the_hook_leaves_other_pushes_alone(pushed) -> None:
    assert pushed(1, base="second") == (0, "", []), "no candidate changed since"
