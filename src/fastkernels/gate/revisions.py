"""A git revision as a folder, and as a source that a worker process imports fastkernels from.

A revision is exported through an index of its own: the user's checkout, index and list of worktrees stay as
they are. What is measured of it is its *product*: the kernels, what tasks build on (`nn`), the baseline
tasks and the registry with its device tables. What measures is this program, on both sides: a worker's source
is our own package with the revision's product in the place of ours. So two revisions are never timed by two
clocks, and both speak the judge's protocol.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

import fastkernels
from fastkernels.errors import MachineError, NotFoundError, UsageError
from fastkernels.gate.inventory import Filters
from fastkernels.records import Case
from fastkernels.runner.worker.process import importing_from

_PRODUCT = ("kernels", "nn")  # packages under src/fastkernels
_PRODUCT_DATA = ("tasks/baseline", "registry")
_SHORT = 10  # characters of a commit, enough to be unique here
_NO_REPOSITORY = "not a git repository (or any"  # everything else that git says is why it refuses one
_INVENTORY = "fastkernels.gate.inventory"


@dataclass(frozen=True)
class Revision:
    """A commit of the repository at `top`; `name` is what the user called it."""

    name: str
    commit: str
    top: Path

    def __str__(self) -> str:
        short = self.commit[:_SHORT]
        return self.name if self.name.startswith(short) else f"{self.name} ({short})"


def find(name: str, folder: Path) -> Revision:
    """The commit called `name` in the repository that holds `folder`.

    NotFoundError with the nearest branches, tags and files, UsageError for a repository that git refuses,
    MachineError without git.
    """
    asked = _run(folder, "rev-parse", "--show-toplevel")
    if asked.returncode and _NO_REPOSITORY not in asked.stderr:
        said = " ".join(asked.stderr.split()).removeprefix("fatal: ").rstrip(".")
        raise UsageError(
            f"git refuses the repository of {folder}, so '{name}' cannot be looked up: {said}. "
            "Do what git says there, or compare folders: --base DIR"
        )
    if asked.returncode:
        outside = f"fk gate --help ({folder} is in no git repository, so this is no revision either)"
        raise NotFoundError("folder or report", name, _siblings(name), outside)
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if commit is None:
        references = (_git(folder, "for-each-ref", "--format=%(refname:short)") or "").split()
        listing = (
            "ls (a folder or a report must be there), git branch --all, git log (a shallow clone lacks old "
            "commits: git fetch --unshallow)"
        )
        raise NotFoundError("folder, report or git revision", name, [*references, *_siblings(name)], listing)
    return Revision(name, commit, Path(asked.stdout.strip()))


def export(revision: Revision, into: Path) -> Path:
    """All files of the revision, in the new folder `into`."""
    into.mkdir(parents=True)
    index = {"GIT_INDEX_FILE": str(into.with_name(f"{into.name}.index"))}
    for arguments in (["read-tree", revision.commit], ["checkout-index", "--all", f"--prefix={into}/"]):
        done = _run(revision.top, *arguments, variables=index)
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise MachineError(
                f"git {arguments[0]} of {revision} failed: {said}. Is {into.parent} full? Try git fsck"
            )
    return into


def source(revision: Revision, exported: Path, into: Path) -> Path:
    """The folder for a worker's PYTHONPATH: our harness with the product of the export.

    UsageError where the revision holds no kernels.
    """
    places = [f"src/fastkernels/{name}" for name in _PRODUCT] + list(_PRODUCT_DATA)
    missing = [place for place in places if not (exported / place).is_dir()]
    if missing:
        raise UsageError(
            f"{revision} of {revision.top} has no {', '.join(missing)}: no kernels of FastKernels. To "
            "compare candidates, give their folders: fk gate HEAD_DIR --base BASE_DIR"
        )
    package = into / "src" / "fastkernels"
    ours = Path(fastkernels.__file__).parent
    without = [str(ours / name) for name in (*_PRODUCT, "_data")]

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [n for n in names if n == "__pycache__" or os.path.join(folder, n) in without]

    shutil.copytree(ours, package, ignore=left_out)
    for name in _PRODUCT:  # links stay links: one may lead in a circle, or to what has no end
        shutil.copytree(exported / "src" / "fastkernels" / name, package / name, symlinks=True)
    for place in _PRODUCT_DATA:
        shutil.copytree(exported / place, into / place, symlinks=True)
    return into / "src"


def cases(revision: Revision, source: Path, filters: Filters) -> list[Case]:
    """The cases that the revision's own registry has; an empty list where it knows nothing of the kind.

    UsageError where this program cannot read that registry.
    """
    environment = {**importing_from(source, os.environ), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", _INVENTORY],
        input=filters.model_dump_json(),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=source,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UsageError(f"The registry of {revision} cannot be read by this version of fk: {last}")
    return TypeAdapter(list[Case]).validate_python(json.loads(done.stdout))


def _siblings(name: str) -> list[str]:
    """What lies where `name` would, if it were a path."""
    parent = Path(name).parent
    return [str(path) for path in sorted(parent.iterdir())] if parent.is_dir() else []


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails."""
    done = _run(folder, *arguments)
    return done.stdout.strip() if done.returncode == 0 else None


def _run(
    folder: Path, *arguments: str, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """git, in English. A hook's own GIT_* variables would name another repository."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**outer, "LC_ALL": "C.UTF-8", "LANGUAGE": "", **(variables or {})},
        )
    except FileNotFoundError:
        raise MachineError("git is not installed; revisions can only be compared with it") from None
