"""Task trees of a few lines, written for each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """tree("name", {"L1/a.py": source}) writes a task tree and returns its folder."""

    def write(name: str, files: dict[str, str]) -> Path:
        for path, source in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        return tmp_path / name

    return write
