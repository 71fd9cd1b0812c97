"""Reports as files: whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from fastkernels.errors import UsageError


def require_writable(path: str | Path, flag: str) -> None:
    """UsageError, before a long run, where `write` could only fail after it. Nothing stays."""
    if str(path) == "-":
        return
    if not str(path) or os.path.isdir(path):
        raise UsageError(f"{flag} '{path}': name a file, or - for stdout")
    require_room(Path(path).absolute().parent, f"{flag} {path}")


def require_new_folder(path: str | Path, flag: str) -> None:
    """UsageError where a run could not make this folder, or where something lies there already."""
    if not str(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        raise UsageError(f"{flag} '{path}': no folder. Name one that is new or empty")
    require_room(Path(path).absolute(), f"{flag} {path}")
    if os.path.isdir(path) and os.listdir(path):
        raise UsageError(f"{flag} {path}: is not empty. Name a new folder, or remove what lies in it")


def require_room(folder: Path, told: str) -> None:
    """UsageError, which begins with `told`, where no file can be made in the folder, or where the folder
    itself cannot be."""
    while not os.path.lexists(folder):
        folder = folder.parent
    try:  # permissions say nothing of a file system without room for files, and everything is allowed to root
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"{told}: nothing can be written into {folder} ({why}). Name another place"
        ) from error


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
