"""Deletes a folder that a candidate could write to, whatever it left there.

shutil.rmtree enters one folder inside the other, so it gives up where these are deeper than Python recurses,
or where a path is longer than the system takes. Here every folder is moved to one place before it is emptied.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fastkernels import interrupts

_TRIES, _PAUSE_S = 5, 0.05
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@interrupts.held()
def remove(folder: Path) -> bool:
    """Whether nothing is left of it. Processes that still write there as they end are waited for; what the
    system does not let go of stays, here or beside the folder's old place."""
    if not os.path.lexists(folder):
        return True
    try:
        place = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        names = map(str, itertools.count())
        _open_up(folder)
        folder.rename(place / next(names))
        here = os.open(place, _FOLDER)
    except OSError:
        return False
    try:
        tries = 0
        while (found := os.listdir(here)) and tries < _TRIES:
            if not sum(_emptied(name, here, names) for name in found):
                tries += 1
                time.sleep(_PAUSE_S)
    finally:
        os.close(here)
    if not found:
        place.rmdir()
    return not found


def _emptied(folder: str, place: int, names: Iterator[str]) -> bool:
    """Whether the folder is gone, and those that were in it lie in `place`."""
    try:
        here = os.open(folder, _FOLDER, dir_fd=place)
        try:
            with os.scandir(here) as entries:
                for entry in list(entries):
                    with contextlib.suppress(OSError):  # then the folder is not empty, and gets another turn
                        _take(entry, here, place, names)
        finally:
            os.close(here)
        os.rmdir(folder, dir_fd=place)
    except OSError:
        return False
    return True


def _take(entry: os.DirEntry[str], here: int, place: int, names: Iterator[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        _open_up(entry.name, here)
        os.rename(entry.name, next(names), src_dir_fd=here, dst_dir_fd=place)
    else:
        os.unlink(entry.name, dir_fd=here)


def _open_up(folder: str | Path, place: int | None = None) -> None:
    """So that it can be read, emptied and moved. Root needs no such mode; and as its user may be another one
    than the candidate's, no link that comes in the folder's place may have it change what is not its own."""
    if os.geteuid():
        os.chmod(folder, 0o700, dir_fd=place)
