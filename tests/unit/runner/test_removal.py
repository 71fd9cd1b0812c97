"""Whatever a candidate leaves in its folder is deleted, and nothing else is."""

import os
from pathlib import Path

import pytest

from fastkernels.runner import removal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "temp" / "worker" / "home").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    return tmp_path / "temp" / "worker"


def assert_removed(folder: Path) -> None:
    assert removal.remove(folder)
    assert [*folder.parent.iterdir()] == []
    assert (folder.parents[1] / "kept" / "file").exists()


def test_folders_deeper_than_python_recurses_and_paths_longer_than_the_system_takes(folder: Path) -> None:
    place = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    assert_removed(folder)


def test_links_pipes_and_names_that_are_its_own(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parents[1] / "kept")
    (folder / "circle").symlink_to("circle")
    os.mkfifo(folder / "pipe")
    for name in ("0", "1", "2"):
        (folder / name / name).mkdir(parents=True)
        (folder / name / "file").write_text("")
    assert_removed(folder)


def test_folders_without_permissions(folder: Path) -> None:
    """Root needs none, so there this tells nothing."""
    (folder / "closed" / "inside").mkdir(parents=True)
    for mode, place in ((0, folder / "closed" / "inside"), (0o500, folder / "closed"), (0o300, folder)):
        place.chmod(mode)
    assert_removed(folder)


def test_a_link_in_the_folders_place_leads_nowhere(folder: Path) -> None:
    (folder / "home").rmdir()
    folder.rmdir()
    folder.symlink_to(folder.parents[1] / "kept")
    assert not removal.remove(folder)
    assert (folder.parents[1] / "kept" / "file").exists()


def test_what_cannot_be_deleted_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    (folder / "file").write_text("")
    monkeypatch.setattr(os, "unlink", refuse)
    assert not removal.remove(folder)
    monkeypatch.undo()
    assert removal.remove(folder), "it is not there any more"
