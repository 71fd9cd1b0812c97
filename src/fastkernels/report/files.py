"""Reports as files: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fastkernels.errors import UsageError


def write(text: str, path: str | Path, flag: str) -> None:
    """To a file, made with its folders and replaced in one step, or to stdout for `-`. UsageError, which
    names the command's `flag`, if it cannot be."""
    if str(path) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(path)
    require_writable(path, flag)
    with (
        _told(path, flag),
        tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as part,
    ):
        try:
            part.write(text)
            part.flush()
            os.chmod(part.name, 0o666 & ~_umask())  # a temporary file is private; a report is not
            os.replace(part.name, target)
        finally:
            Path(part.name).unlink(missing_ok=True)


def require_writable(path: str | Path, flag: str) -> None:
    """UsageError where `write` could not write: before hours of measuring, not behind them. Makes the
    file's folders."""
    if str(path) == "-":
        return
    target = Path(path)
    with _told(path, flag):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass


@contextlib.contextmanager
def _told(path: str | Path, flag: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror or error}") from error


def _umask() -> int:
    """The process's umask can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
