"""What the judge is told of an error: the candidate's frames, and all of them beside."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from fastkernels.loader.overlay import Overlay
from fastkernels.runner.inside.main import report

FAILS = """
import torch


def helper():
    return torch.ones(3) + torch.ones(4)


class RMSNorm:
    def forward(self):
        return helper()
"""


def test_a_candidates_error_is_told_without_the_harness(tmp_path: Path) -> None:
    file = tmp_path / "L1" / "rms_norm.py"
    file.parent.mkdir()
    file.write_text(FAILS)
    overlay = Overlay.over_baseline([tmp_path])
    try:
        overlay.load("L1/rms_norm").RMSNorm().forward()
    except RuntimeError as error:
        told = report(error, SimpleNamespace(overlay=overlay))
    assert (told.file, told.line) == (str(file), 6)
    assert "test_main.py" not in told.traceback
    frames = [line for line in told.traceback.splitlines() if line.strip().startswith("File")]
    assert frames[:2] == [f'  File "{file}", line 11, in forward', f'  File "{file}", line 6, in helper']
    assert "test_main.py" in told.trace


def test_an_import_error_is_told_without_the_import_system(tmp_path: Path) -> None:
    """Neither of Python nor of the overlay, which imports a candidate's files for one another."""
    file, helper = tmp_path / "L1" / "rms_norm.py", tmp_path / "L1" / "rms_norm_helper.py"
    file.parent.mkdir()
    file.write_text("from . import rms_norm_helper")
    helper.write_text("import nothing_here")
    overlay = Overlay.over_baseline([tmp_path])
    try:
        overlay.load("L1/rms_norm")
    except ImportError as error:
        told = report(error, SimpleNamespace(overlay=overlay))
    assert told.message == "No module named 'nothing_here'"
    assert [line for line in told.traceback.splitlines() if line.strip().startswith("File")] == [
        f'  File "{file}", line 1, in <module>',
        f'  File "{helper}", line 1, in <module>',
    ]


def test_an_absolute_import_of_a_helper_is_told_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "L1" / "rms_norm.py"
    file.parent.mkdir()
    file.write_text("import rms_norm_helper")
    (tmp_path / "L1" / "rms_norm_helper.py").write_text("")
    overlay = Overlay.over_baseline([tmp_path])
    try:
        overlay.load("L1/rms_norm")
    except ImportError as error:
        told = report(error, SimpleNamespace(overlay=overlay))
    beginning = "No module named 'rms_norm_helper'. Only relative imports reach L1/rms_norm_helper: "
    assert told.message.startswith(f"{beginning}from . import rms_norm_helper")
