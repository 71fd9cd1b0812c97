"""Where files live: the registry and the baseline tasks (wheel or checkout), the user's candidates and state."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent
_IN_CHECKOUT = {"registry": "registry", "baseline": "tasks/baseline"}


def data_dir(name: str) -> Path:
    """The folder `registry` or `baseline`: inside an installed wheel, else in the checkout."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _CHECKOUT / _IN_CHECKOUT[name]


def state_dir() -> Path:
    """Where history and caches go: the setting `state_dir`, else `$XDG_STATE_HOME/fastkernels`. Not created here."""
    from fastkernels.settings import resolve  # reads files that this module finds

    if chosen := resolve().state_dir:
        return chosen.expanduser()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fastkernels"


def default_candidates_dir() -> Path:
    """The setting `candidates`, else `tasks/candidate` of the working folder or of the checkout.

    Where `fk stubs` writes and `fk kernels` looks.
    """
    from fastkernels.settings import resolve

    if chosen := resolve().candidates:
        return Path(chosen).expanduser()
    here = Path.cwd() / "tasks" / "candidate"
    checkout = _CHECKOUT / "tasks" / "candidate"
    return here if here.is_dir() or not checkout.is_dir() else checkout
