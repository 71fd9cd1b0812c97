"""Git repositories for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
CASES = "registry/cases/L1/rms_norm.jsonl"
KERNEL = "src/fastkernels/kernels/rms_norm/torch.py"
COPIED = ("src/fastkernels/kernels", "src/fastkernels/nn", "tasks/baseline", "registry")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
