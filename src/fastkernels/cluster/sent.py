"""A candidate as it travels: what its files hold, and not where they lie."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from fastkernels.errors import UsageError
from fastkernels.layout import shown
from fastkernels.loader import digest
from fastkernels.loader.candidates import CandidateSet, discover

MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Layer:
    """`shown`: the folder's path as reports name it. `files`: of each the place in it, mode and content."""

    shown: str
    files: tuple[tuple[str, int, bytes], ...]


@dataclass(frozen=True)
class Sent:
    name: str
    layers: tuple[Layer, ...]  # highest first


def packed(candidate: CandidateSet) -> Sent:
    """UsageError for files that cannot be read, or are too large together."""
    left = MOST_BYTES
    layers = []
    for folder in candidate.layers:
        files = []
        for name, file in digest.held(folder).items():
            try:
                status = file.stat()
                if stat.S_ISDIR(status.st_mode):
                    continue
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(0, "no regular file")
                left -= status.st_size
                if left < 0:
                    problem = f"its folders hold more than {MOST_BYTES >> 20} MiB"
                    raise UsageError(f"{candidate.name} is not sent to other machines: {problem}")
                files.append((str(name), stat.S_IMODE(status.st_mode), file.read_bytes()))
            except OSError as error:
                raise UsageError(f"{file} cannot be sent to other machines: {error.strerror}") from None
        layers.append(Layer(shown(folder), tuple(files)))
    return Sent(candidate.name, tuple(layers))


def unpacked(sent: Sent, folder: Path) -> CandidateSet:
    """The same candidate below a folder of this machine, under its name."""
    places = _places(sent, folder)
    for place, layer in zip(places, sent.layers):
        place.mkdir()
        for name, mode, content in layer.files:
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(mode | stat.S_IRUSR)
    [found] = discover([os.pathsep.join(map(str, places))])
    return replace(found, name=sent.name)


def where_it_lies(sent: Sent, folder: Path) -> dict[str, str]:
    """Path here -> path as its owner knows it, of each layer that was unpacked below the folder."""
    return {str(place): layer.shown for place, layer in zip(_places(sent, folder), sent.layers)}


def _places(sent: Sent, folder: Path) -> list[Path]:
    """Of equal length: none is the beginning of another."""
    return [folder / f"{number:03}" for number in range(len(sent.layers))]
