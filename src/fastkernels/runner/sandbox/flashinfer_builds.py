"""FlashInfer's kernels that the user has built, for processes that must not touch them.

FlashInfer compiles a kernel at its first use, for a minute and more, into a folder of the user's. A copy of
that folder spares nothing: it asks ninja at the first use in each process, whose rules hold paths, and in a
copy all paths are new. What the package `flashinfer_jit_cache` has it takes as it is, without asking. So a
process gets such a package, with copies of what is built.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

NAME = "flashinfer_jit_cache"
PACKAGE = """__version__ = "{version}"


def get_jit_cache_dir():
    from pathlib import Path

    return str(Path(__file__).parent / "jit_cache")
"""
_FOLDER = "built"  # of a worker's


def home(outer: Mapping[str, str] = os.environ) -> Path:
    """Where FlashInfer keeps what it builds, in `.cache`."""
    return Path(outer.get("FLASHINFER_WORKSPACE_BASE") or outer.get("HOME") or Path.home())


def lend(root: Path, outer: Mapping[str, str] = os.environ) -> None:
    """Into the folder of a worker. Nothing without a build of this version of FlashInfer, or where builds for
    several architectures lie beside each other; a package that is installed stays the one."""
    if importlib.util.find_spec(NAME) is not None:
        return
    try:
        version = importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return
    libraries = [*_libraries(home(outer) / ".cache" / "flashinfer" / version)]
    if not libraries:
        return
    package = root / _FOLDER / NAME
    for library in libraries:
        place = package / "jit_cache" / library.stem / library.name
        place.parent.mkdir(parents=True)
        shutil.copyfile(library, place)
    (package / "__init__.py").write_text(PACKAGE.format(version=version))


def _libraries(builds: Path) -> Iterator[Path]:
    architectures = [*builds.glob("*/cached_ops")]
    for folder in architectures[0].iterdir() if len(architectures) == 1 else ():
        library, log = folder / f"{folder.name}.so", folder / ".ninja_log"
        # Ninja notes a library when it is whole.
        if library.is_file() and log.is_file() and library.name in log.read_text():
            yield library


def import_from(root: Path) -> None:
    """In the worker: what was lent can be imported."""
    if (root / _FOLDER).is_dir():
        sys.path.append(str(root / _FOLDER))
