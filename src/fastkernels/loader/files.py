"""A candidate's files, found and read such that nothing that lies there keeps the reader: links in a circle
or to all of the machine, folders deeper than Python recurses, pipes, devices, files without an end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 1 << 20


def read(file: Path) -> bytes:
    """OSError for what is no regular file of at most MAX_BYTES, with EFBIG for a longer one."""
    status = file.stat()  # before it is opened: a pipe waits for its writer, and some devices act
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no regular file")
    if status.st_size > MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_BYTES >> 20} MiB")
    with file.open("rb") as opened:
        return opened.read(status.st_size)  # of /proc, whose files have no size and may not end, nothing


def below(folder: Path, linked: bool = False) -> Iterator[Path]:
    """Everything in a folder and in those beneath it, also in folders that are `linked` in; each once, and
    always by the same path. Folders that cannot be read hold nothing."""
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            status, entries = place.stat(), sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue  # a link to a folder above
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            path = place / entry.name
            yield path
            if os.path.isdir(path) and (linked or not entry.is_symlink()):
                waiting.append(path)
