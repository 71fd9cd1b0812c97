"""Reference libraries that cannot be imported beside transformers, in a process of their own.

The Makefile installs them (`apart.txt`) into a folder that only this process has on its path. The process
runs a script of this folder, `<library>_process.py FILE`: it reads FILE by `torch.load`, and writes its
answer there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(sys.prefix) / "apart"


def needs(package: str) -> pytest.MarkDecorator:
    """Skips a test where the package is installed neither apart nor beside ours."""
    return pytest.mark.skipif(
        not (FOLDER / package).is_dir() and find_spec(package) is None,
        reason=f"{package} is not installed: make EXTRAS=dev,reference in a fresh checkout",
    )


def answer(script: str, asked: Any, folder: Path) -> Any:
    """What the script of this name (`timm_process`) leaves for `asked`; folder: a test's own."""
    file = folder / "asked.pt"
    torch.save(asked, file)
    paths = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "YOLO_CONFIG_DIR": str(folder)}
    command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(file)
