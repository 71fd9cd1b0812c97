"""The checkout stays small: it travels whole to machines that take 64 MB for everything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_BYTES = 12_000_000


def test_the_tree_is_small() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    files = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    sizes = {file: file.stat().st_size for file in files if file.is_file()}
    largest = ", ".join(
        f"{file.relative_to(ROOT)} {size}" for file, size in sorted(sizes.items(), key=lambda x: -x[1])[:5]
    )
    assert sum(sizes.values()) <= MOST_BYTES, f"the largest files: {largest}"
