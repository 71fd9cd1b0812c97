"""flag > FK_* variable > [tool.fastkernels] > registry > default, and where each value comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastkernels import settings
from fastkernels.errors import FileFormatError, NotFoundError, UsageError
from fastkernels.records import default_size
from fastkernels.settings import resolve


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without settings and an environment without FK_* variables."""
    for name in settings.Settings.model_fields:
        monkeypatch.delenv(f"FK_{name.upper()}", raising=False)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


def test_each_layer_gives_way_to_the_one_above(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (resolve().suite, resolve().origin("suite")) == ("default", "registry/settings.yaml")
    assert (resolve().device, resolve().origin("device")) == ("auto", "default")
    write(alone, "[tool.fastkernels]\nsuite = 'smoke'\nstate-dir = '/x'\n")
    found = resolve()
    assert (found.suite, found.origin("suite")) == ("smoke", str(alone / "pyproject.toml"))
    assert (found.state_dir, found.origin("state_dir")) == (Path("/x"), str(alone / "pyproject.toml"))
    monkeypatch.setenv("FK_SUITE", "full")
    assert (resolve().suite, resolve().origin("suite")) == ("full", "FK_SUITE")
    found = resolve(suite="default", device=None)
    assert (found.suite, found.origin("suite"), found.origin("device")) == ("default", "flag", "default")


def test_only_the_nearest_pyproject_counts(alone: Path) -> None:
    write(alone, "[tool.fastkernels]\nsuite = 'smoke'\n")
    (alone / "a" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert resolve().suite == "default"


def test_folders(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert settings.state_dir() == Path("/state/fastkernels")
    monkeypatch.setenv("FK_STATE_DIR", "/elsewhere")
    assert settings.state_dir() == Path("/elsewhere")
    write(alone, "[tool.fastkernels]\ncandidates = 'mine'\n")
    assert settings.candidates_dir() == Path("mine")
    write(alone, "[tool.fastkernels]\ncandidates = '~nobody_of_this_name/mine'\n")
    assert settings.candidates_dir() == Path("~nobody_of_this_name/mine")


def test_switches_and_empty_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FK_TRACKING", "0")
    monkeypatch.setenv("FK_DEVICE", "")
    assert resolve().tracking is False
    assert resolve().origin("device") == "default"


def test_wrong_values_name_their_origin(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"flag: device: .*'tpu'"):
        resolve(device="tpu")
    monkeypatch.setenv("FK_SIZE", "huge")
    with pytest.raises(UsageError, match=r"FK_SIZE: size: .*'huge'"):
        resolve()
    monkeypatch.delenv("FK_SIZE")
    write(alone, "[tool.fastkernels]\nsize = 3\n")
    with pytest.raises(UsageError, match=r"pyproject\.toml: size: "):
        resolve()


def test_unknown_settings_and_broken_files(alone: Path) -> None:
    write(alone, "[tool.fastkernels]\nsuit = 'smoke'\n")
    with pytest.raises(NotFoundError, match=r"Did you mean suite.*the settings are device, size,"):
        resolve()
    write(alone, "[tool]\nfastkernels = 3\n")
    with pytest.raises(FileFormatError, match="expected a table"):
        resolve()
    write(alone, "[tool.fastkernels\n")
    with pytest.raises(FileFormatError, match="line 1"):
        resolve()


def test_auto_is_left_to_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (resolve().device_asked, resolve().size_asked) == (None, None)
    monkeypatch.setenv("FK_DEVICE", "cpu")
    monkeypatch.setenv("FK_SIZE", "full")
    assert (resolve().device_asked, resolve().size_asked) == ("cpu", "full")
    assert (default_size("cuda"), default_size("cpu")) == ("full", "tiny")
