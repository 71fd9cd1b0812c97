"""Where files live: the registry and the baseline tasks, the user's candidates and state."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent
# Extras whose packages lie elsewhere than on PyPI.
_INDEX = {"flash-attn-3": "https://download.pytorch.org/whl/cu130"}
_IN_CHECKOUT = {"registry": "registry", "baseline": "tasks/baseline", "benchmarks": "benchmarks"}


def data_dir(name: str) -> Path:
    """The folder `registry` or `baseline`: inside an installed wheel, else in the checkout. `benchmarks`,
    with its reports, is in a checkout alone."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _CHECKOUT / _IN_CHECKOUT[name]


def install_line(extra: str) -> str:
    """How to get one of this project's optional dependencies: from the checkout that runs, else by the
    distribution's name, which is not the package's. No path, since reports repeat it.
    """
    index = f" --extra-index-url {_INDEX[extra]}" if extra in _INDEX else ""
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]'{index} in the checkout"
    return f"pip install 'fk-kernels[{extra}]'{index}"


def file_of(defined: type | Callable) -> Path | None:
    """The file of the module that defines a class or function; None where it was not read from one."""
    file = getattr(sys.modules.get(defined.__module__), "__file__", None)
    return Path(file) if file else None


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/fastkernels`: history and caches, unless the user chose (settings.state_dir)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fastkernels"


def default_candidates_dir() -> Path:
    """`tasks/candidate` here or in the checkout, unless the user chose (settings.candidates_dir)."""
    here = Path.cwd() / "tasks" / "candidate"
    checkout = _CHECKOUT / "tasks" / "candidate"
    return here if here.is_dir() or not checkout.is_dir() else checkout


def shown(path: str | Path) -> str:
    """A path as reports show it: relative to the working folder where it lies in it, so that they can be
    shared.
    """
    path = Path(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
