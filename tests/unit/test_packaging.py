"""What the project is called where it is installed from: `fk-kernels`, imported as `fastkernels`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastkernels import __version__, layout
from fastkernels.registry import source

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_does_not_depend_on_the_distributions_name() -> None:
    assert __version__ == PROJECT["version"]


def test_a_checkout_installs_from_itself_and_a_wheel_by_its_own_name(monkeypatch, tmp_path: Path) -> None:
    assert layout.install_line("gpu") == "pip install -e '.[gpu]' in the checkout"
    monkeypatch.setattr(layout, "_CHECKOUT", tmp_path)
    assert layout.install_line("gpu") == f"pip install '{PROJECT['name']}[gpu]'"


@pytest.mark.parametrize("kernel", source.kernels())
def test_extras_that_hints_name_exist(kernel: str) -> None:
    extras = {implementation.extra for implementation in source.implementations(kernel)}
    assert extras - {None} <= set(PROJECT["optional-dependencies"])


def test_no_hint_installs_what_others_publish() -> None:
    """`fastkernels` and `fastkernels-bench` on the package index are not this project."""
    strangers = re.compile(
        r"pip3? install[^\n;&]*?[ '\"](fastkernels(-bench)?)(?=[\[ '\"`=<>~]|$)", re.MULTILINE
    )
    assert strangers.search("pip install 'fastkernels[gpu]'")
    assert strangers.search("pip install -U fastkernels")
    assert not strangers.search("pip install -e '.[gpu]'; cd fastkernels")
    listed = subprocess.run(
        ["git", "grep", "-lE", "pip3? install"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no git checkout")
    tracked = listed.stdout.split()
    here = Path(__file__).relative_to(ROOT).as_posix()
    assert "Makefile" in tracked
    assert not [name for name in tracked if name != here and strangers.search((ROOT / name).read_text())]
