"""What a candidate's folders hold, as one number: a report that has it can say later whether they still do.

Everything counts that a candidate could run or read there, since helpers, packages, CUDA sources and data may
lie beside its task files (overlay.py): every file by name and content, those of linked folders with them. Not
Python's bytecode cache, which an overlay neither reads nor writes, and not git's own files.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from fastkernels.layout import shown
from fastkernels.loader import files
from fastkernels.loader.candidates import CandidateSet
from fastkernels.records import CandidateFiles

_NEVER_RUN = {"__pycache__", ".git"}
_LOCK = ".#"  # how Emacs calls a link beside a file that it holds changes of
_CHUNK = 1 << 20


def files_of(candidate: CandidateSet) -> CandidateFiles:
    """What a candidate holds now, as a report keeps it."""
    folders = tuple(map(shown, candidate.layers))
    return CandidateFiles(name=candidate.name, folders=folders, sha256=digest(candidate.layers))


def digest(layers: Sequence[Path]) -> str:
    """sha256 of all files of a candidate's folders, highest first, wherever the folders lie."""
    whole = hashlib.sha256()
    for layer in layers:
        for name, file in held(layer).items():
            whole.update(_line(os.fsencode(name), file))
        whole.update(b"\n")  # a file that moved to another layer is another candidate
    return whole.hexdigest()


def held(layer: Path) -> dict[Path, Path]:
    """What counts of a folder, and the folders in it: by its place there, in the order of places."""
    found = {file.relative_to(layer): file for file in files.below(layer, linked=True)}
    return {
        name: found[name]
        for name in sorted(found)
        if not _NEVER_RUN & set(name.parts) and not name.name.startswith(_LOCK)
    }


def _line(name: bytes, file: Path) -> bytes:
    """Name and content in short; nothing for a folder, whose files have lines of their own."""
    try:
        status = file.stat()
        if stat.S_ISDIR(status.st_mode):
            return b""
        content = _content(file, status.st_size) if stat.S_ISREG(status.st_mode) else "no file"
    except OSError as error:  # a link to nowhere, or nobody may read it: that is what it holds
        content = f"unreadable {error.errno}"
    return hashlib.sha256(name).digest() + content.encode() + b"\n"


def _content(file: Path, size: int) -> str:
    """Of the bytes that the file has by its size: some under /proc have none, and no end."""
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while size > 0 and (chunk := opened.read(min(size, _CHUNK))):
            found.update(chunk)
            size -= len(chunk)
    return found.hexdigest()
