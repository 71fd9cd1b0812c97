"""Reports as files: whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from fastkernels.errors import UsageError


def require_writable(path: str | Path, flag: str) -> None:
    """UsageError, before a long run, where `write` could only fail after it. Nothing is made."""
    if str(path) == "-":
        return
    if not str(path) or os.path.isdir(path):
        raise UsageError(f"{flag} '{path}': name a file, or - for stdout")
    folder = Path(path).absolute().parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{flag} {path}: nothing can be written into {folder}")


def write(text: str, path: str | Path, flag: str) -> None:
    """To a file, made with its folders and replaced in one step, or to stdout for `-`. UsageError, which
    names the command's `flag`, if it cannot be."""
    if str(path) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as part:
            try:
                part.write(text)
                part.flush()
                os.chmod(part.name, 0o666 & ~_umask())  # a temporary file is private; a report is not
                os.replace(part.name, target)
            finally:
                Path(part.name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror or error}") from error


def _umask() -> int:
    """The process's umask can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
