from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fastkernels.layout import data_dir
from fastkernels.registry import lookup, models


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the registry that lookups read, to be damaged."""
    folder = tmp_path / "registry"
    shutil.copytree(data_dir("registry"), folder)
    original = data_dir
    for module in (lookup, models):
        monkeypatch.setattr(module, "data_dir", lambda name: folder if name == "registry" else original(name))
    return folder
