"""Words of the command line: what looks like a path is one, any other is a git revision."""

from __future__ import annotations

import os
from pathlib import Path


def parts(word: str) -> list[Path]:
    return [Path(part).expanduser() for part in word.split(os.pathsep) if part]


def exists(word: str) -> bool:
    """Whether the word means files: a path that exists, or looks like nothing but a path."""
    first = [*parts(word), None][0]
    return first is not None and (
        first.exists() or word.startswith((".", "/", "~")) or word.endswith(("/", ".json"))
    )


def is_file(word: str) -> bool:
    return Path(word).expanduser().is_file() or (word.endswith(".json") and not Path(word).is_dir())
