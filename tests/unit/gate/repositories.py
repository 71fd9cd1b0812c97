"""Git repositories for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
CASES = "registry/cases/L1/rms_norm.jsonl"
KERNEL = "src/fastkernels/kernels/rms_norm_triton.py"
_COPIED = ("src/fastkernels/kernels", "src/fastkernels/nn", "tasks/baseline", "registry")


def git(folder: Path, *arguments: str) -> str:
    """What git prints."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, name: str) -> None:
    """Everything that lies there, tagged with the name."""
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", name)
    git(folder, "tag", name)


def make_repository(folder: Path, changes: Mapping[str, Callable[[str], str]]) -> None:
    """Two commits on `trunk`: `first` is what this checkout holds, `second` has the changed files."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-r", "--parents", *_COPIED, str(folder)], check=True, cwd=ROOT)
    (folder / ".gitignore").write_text("__pycache__\n")
    git(folder, "init", "--quiet", "--initial-branch", "trunk")
    commit(folder, "first")
    for name, change in changes.items():
        path = folder / name
        changed = change(path.read_text())
        assert changed != path.read_text(), f"{name} does not change"
        path.write_text(changed)
    commit(folder, "second")
