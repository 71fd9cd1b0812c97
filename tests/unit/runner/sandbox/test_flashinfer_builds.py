"""What the user has built of FlashInfer comes to a candidate's process as copies, and is not built again."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from fastkernels.runner.sandbox import flashinfer_builds
from fastkernels.runner.worker.pool import Worker

VERSION = "0.6.14"
SIDE = "tests.unit.runner.sides_for_tests:Echo"
ROOT = Path(__file__).parents[4]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with FlashInfer's folder: one library that ninja has finished, one that it has not."""
    assert importlib.util.find_spec(flashinfer_builds.NAME) is None

    def version(name: str) -> str:
        if name != "flashinfer-python":
            raise importlib.metadata.PackageNotFoundError(name)
        return VERSION

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLASHINFER_WORKSPACE_BASE", raising=False)
    for name, outputs in (("norm", "norm.o norm.so"), ("rope", "rope.o")):
        library(tmp_path, name, outputs)
    return tmp_path


def library(home: Path, name: str, outputs: str, architecture: str = "90a") -> None:
    folder = home / ".cache" / "flashinfer" / VERSION / architecture / "cached_ops" / name
    folder.mkdir(parents=True)
    (folder / f"{name}.so").write_text(name)
    (folder / ".ninja_log").write_text(
        "# ninja log v5\n" + "".join(f"0\t1\t2\t/there/{o}\tff\n" for o in outputs.split())
    )


def found(root: Path) -> dict[str, Any]:
    """What FlashInfer finds there."""
    package = runpy.run_path(str(root / "built" / flashinfer_builds.NAME / "__init__.py"))
    folder = Path(package["get_jit_cache_dir"]())
    libraries = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.so")}
    return {"version": package["__version__"], "libraries": libraries}


def test_what_is_whole_is_copied(user: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("worker")
    flashinfer_builds.lend(root)
    assert found(root) == {"version": VERSION, "libraries": {"norm/norm.so": "norm"}}
    (root / "built" / flashinfer_builds.NAME / "jit_cache" / "norm" / "norm.so").write_text("poisoned")
    (theirs,) = user.rglob("norm.so")
    assert theirs.read_text() == "norm"


def test_where_nothing_is_known_to_fit_nothing_is_lent(
    user: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path_factory.mktemp("worker")
    flashinfer_builds.lend(root, {"HOME": str(root)})  # nothing built
    library(user, "norm", "norm.so", architecture="80")
    flashinfer_builds.lend(root)  # for which of the two?
    monkeypatch.undo()
    flashinfer_builds.lend(root, {"HOME": str(user)})  # no FlashInfer here
    assert not any(root.iterdir())


def test_a_workers_process_finds_it_and_a_baselines_uses_the_users(
    user: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    code = (
        f"import os, {flashinfer_builds.NAME} as there\nfound = sorted(os.listdir(there.get_jit_cache_dir()))"
    )
    with Worker("w", threads=1) as worker:
        worker.start(SIDE)
        assert worker.call("look", code=code) == {"found": ["norm"]}
    with Worker("w", threads=1, shared_caches=tmp_path_factory.mktemp("caches")) as worker:
        worker.start(SIDE)
        variables = worker.call("environment")["variables"]
    assert variables["FLASHINFER_WORKSPACE_BASE"] == str(user)
