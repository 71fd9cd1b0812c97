"""Words of the command line: what looks like a path is one, any other is a git revision."""

from __future__ import annotations

import os
from pathlib import Path


def parts(word: str) -> list[Path]:
    return [Path(os.path.expanduser(part)) for part in word.split(os.pathsep) if part]


def exists(word: str) -> bool:
    """Whether the word means files: a path that exists, or looks like nothing but a path."""
    first = [*parts(word), None][0]
    return first is not None and (
        os.path.exists(first) or word.startswith((".", "/", "~")) or word.endswith(("/", ".json"))
    )


def is_file(word: str) -> bool:
    return os.path.isfile(os.path.expanduser(word)) or (word.endswith(".json") and not os.path.isdir(word))
