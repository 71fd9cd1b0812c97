"""A candidate's files on their way to another machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastkernels.cluster import sent
from fastkernels.errors import UsageError
from fastkernels.loader.candidates import discover
from fastkernels.loader.digest import digest

TASK = "class RMSNorm:\n    pass\n"


def tree(folder: Path) -> Path:
    (folder / "L1").mkdir(parents=True)
    (folder / "L1" / "rms_norm.py").write_text(TASK)
    return folder


def test_what_arrives_is_the_same_candidate_under_its_name(tmp_path) -> None:
    top, below, away = tree(tmp_path / "top"), tree(tmp_path / "below"), tmp_path / "away"
    (top / "L1" / "kernel.cu").write_bytes(b"\x00\xff")
    (top / "L1" / "build").write_text("#!/bin/sh\n")
    (top / "L1" / "build").chmod(0o755)
    (top / "L1" / "__pycache__").mkdir()
    (top / "L1" / "__pycache__" / "rms_norm.pyc").write_bytes(b"old")
    helpers = tmp_path / "helpers"
    helpers.mkdir()
    (helpers / "shapes.py").write_text("WIDTH = 64\n")
    (top / "L1" / "lib").symlink_to(helpers)
    [found] = discover([f"{top}{os.pathsep}{below}"])
    away.mkdir()
    there = sent.unpacked(sent.packed(found), away)
    assert there.name == "top+below"
    assert digest(there.layers) == digest(found.layers)
    assert there.files == {"L1/rms_norm": there.layers[0] / "L1" / "rms_norm.py"}
    assert (there.layers[0] / "L1" / "lib" / "shapes.py").read_text() == "WIDTH = 64\n"
    assert os.access(there.layers[0] / "L1" / "build", os.X_OK)
    assert not (there.layers[0] / "L1" / "__pycache__").exists()
    assert sent.where_it_lies(sent.packed(found), away) == {
        str(there.layers[0]): str(top),
        str(there.layers[1]): str(below),
    }


def test_what_cannot_be_sent_is_said_before_anything_runs(tmp_path, monkeypatch) -> None:
    folder = tree(tmp_path / "mine")
    (folder / "L1" / "data").symlink_to(tmp_path / "nowhere")
    [found] = discover([folder])
    with pytest.raises(UsageError, match=r"data cannot be sent to other machines: No such file"):
        sent.packed(found)
    (folder / "L1" / "data").unlink()
    os.mkfifo(folder / "L1" / "data")
    with pytest.raises(UsageError, match=r"data cannot be sent to other machines: no regular file"):
        sent.packed(found)
    (folder / "L1" / "data").unlink()
    monkeypatch.setattr(sent, "MOST_BYTES", len(TASK) - 1)
    with pytest.raises(UsageError, match=r"mine is not sent to other machines: .* more than"):
        sent.packed(found)
