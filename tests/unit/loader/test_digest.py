"""One number for what a candidate's folders hold: other files have another, and the same files the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fastkernels.loader.digest import digest

FILES = {"L1/rms_norm.py": "code", "L1/rms_norm_kernel/__init__.py": "", "helper.py": "", "L1/table.bin": "1"}


def test_a_copy_has_the_same(tree, tmp_path: Path) -> None:
    mine = tree("mine", FILES)
    before = digest([mine])
    shutil.copytree(mine, tmp_path / "copy")
    assert digest([tmp_path / "copy"]) == before
    os.utime(mine / "L1" / "rms_norm.py", (1, 1))
    assert digest([mine]) == before, "no file became another"


def _move(mine: Path) -> None:
    (mine / "L1" / "table.bin").rename(mine / "table.bin")


def _link(mine: Path) -> None:
    (mine / "L1" / "glu.py").symlink_to("nowhere")


@pytest.mark.parametrize(
    "change",
    [
        *(lambda mine, file=file: (mine / file).write_text("other") for file in FILES),
        lambda mine: (mine / "helper.py").unlink(),
        lambda mine: (mine / "L1" / "new.cu").touch(),
        _move,
        _link,
    ],
)
def test_every_change_of_what_may_run_is_seen(tree, change: Callable[[Path], object]) -> None:
    mine = tree("mine", FILES)
    before = digest([mine])
    change(mine)
    assert digest([mine]) != before


def test_a_linked_folder_belongs_to_it(tree) -> None:
    mine, elsewhere = tree("mine", FILES), tree("elsewhere", {"helper.py": "one"})
    (mine / "L1" / "linked").symlink_to(elsewhere)
    (mine / "L1" / "circle").symlink_to(mine)
    before = digest([mine])
    (elsewhere / "helper.py").write_text("two")
    assert digest([mine]) != before


def test_layers_have_an_order(tree) -> None:
    top, below = tree("top", {"L1/rms_norm.py": "a"}), tree("below", {"L1/rms_norm.py": "b"})
    assert len({digest([top, below]), digest([below, top]), digest([top])}) == 3


def test_what_tools_leave_behind_is_none_of_it(tree) -> None:
    mine = tree("mine", FILES)
    before = digest([mine])
    tree("mine", {"L1/__pycache__/rms_norm.pyc": "x", ".git/HEAD": "x"})
    (mine / "L1" / ".#rms_norm.py").symlink_to("me@here.1:2")
    assert digest([mine]) == before


def test_what_never_ends_keeps_nobody(tree) -> None:
    mine = tree("mine", FILES)
    os.mkfifo(mine / "L1" / "pipe")
    (mine / "L1" / "endless").symlink_to("/dev/zero")
    assert digest([mine]) == digest([mine])
