"""Revisions of a small repository: found, exported beside the checkout, and imported by a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.errors import NotFoundError, UsageError
from fastkernels.gate import revisions
from fastkernels.gate.inventory import Filters
from tests.unit.gate.repositories import KERNEL, ROOT, git


def test_words_that_git_knows(repository: Path) -> None:
    first, second = revisions.find("first", repository), revisions.find("HEAD", repository / "registry")
    assert first.commit == git(repository, "rev-parse", "first")
    assert second.commit == git(repository, "rev-parse", "trunk")
    assert str(second) == f"HEAD ({second.commit[:10]})"
    assert str(revisions.find(first.commit, repository)) == first.commit


@pytest.mark.parametrize(
    ("word", "near"), [("trunc", "trunk"), ("secnod", "second"), ("--help", ""), ("trunk:README.md", "")]
)
def test_words_that_git_does_not_know(repository: Path, word: str, near: str) -> None:
    with pytest.raises(NotFoundError) as error:
        revisions.find(word, repository)
    assert f"revision '{word}'" in str(error.value)
    assert "git log" in str(error.value)
    if near:
        assert f"Did you mean {near}" in str(error.value)


def test_outside_a_repository(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is in no git repository"):
        revisions.find("main", tmp_path)


def test_a_repository_that_git_refuses_is_not_called_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".git" / "config").write_text("[core\n")
    with pytest.raises(UsageError, match=r"git refuses the repository of .*bad config.*or compare folders"):
        revisions.find("main", tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to somebody else")
def test_somebody_else_s_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # the user's own settings may trust it
    place = tmp_path / "theirs"
    git(tmp_path, "init", "--quiet", str(place))
    for found in (place, place / ".git"):
        os.chown(found, 12345, 12345)
    with pytest.raises(UsageError, match=r"dubious ownership.*git config --global --add safe.directory"):
        revisions.find("main", place)


def test_a_hook_s_variables_do_not_lead_elsewhere(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(ROOT / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(ROOT / "nowhere"))
    assert revisions.find("first", repository).name == "first"


def test_an_export_leaves_the_checkout_as_it_is(repository: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*") if path.is_file()}
    exported = revisions.export(revisions.find("first", repository), tmp_path / "first")
    assert "MARK" not in (exported / KERNEL).read_text()
    assert git(repository, "status", "--porcelain") == ""
    after = {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*") if path.is_file()}
    assert {p: t for p, t in after.items() if p.name != "index"} == {
        p: t for p, t in before.items() if p.name != "index"
    }


@pytest.fixture(scope="module")
def source(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sides")
    second = revisions.find("second", repository)
    return revisions.source(second, revisions.export(second, folder / "export"), folder / "side")


def test_a_source_has_the_revision_s_product_and_our_harness(source: Path) -> None:
    package = source / "fastkernels"
    ours = ROOT / "src" / "fastkernels"
    assert "MARK = 'second'" in (package / "kernels" / "rms_norm_triton.py").read_text()
    assert (package / "runner" / "inside" / "kernel_side.py").read_text() == (
        ours / "runner" / "inside" / "kernel_side.py"
    ).read_text()
    program = (
        "import fastkernels, fastkernels.layout as l; print(fastkernels.__file__);"
        "print(l.data_dir('baseline')); print(l.data_dir('registry'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert all(line.startswith(str(source.parent)) for line in done.stdout.splitlines()), done.stdout


def test_a_revision_s_links_are_not_followed(tmp_path: Path) -> None:
    for place in ("src/fastkernels/kernels", "src/fastkernels/nn", "tasks/baseline", "registry"):
        (tmp_path / "export" / place).mkdir(parents=True)
        (tmp_path / "export" / place / "endless").symlink_to("/dev/zero")
        (tmp_path / "export" / place / "circle").symlink_to(".")
    revision = revisions.Revision("linked", "0" * 40, tmp_path)
    into = revisions.source(revision, tmp_path / "export", tmp_path / "side")
    for name in ("endless", "circle"):
        assert (into / "fastkernels" / "kernels" / name).is_symlink()
        assert (tmp_path / "side" / "registry" / name).is_symlink()


def test_a_revision_s_own_registry_is_asked(repository: Path, source: Path) -> None:
    second = revisions.find("second", repository)
    ours = {case.id for case in registry.cases("L1/rms_norm")}
    found = {case.id for case in revisions.cases(second, source, Filters(targets=("rms_norm",)))}
    assert found < ours
    assert len(ours - found) == 1
    assert revisions.cases(second, source, Filters(targets=("no_such_task",))) == []
    assert {c.size for c in revisions.cases(second, source, Filters(size="tiny"))} == {"tiny"}


def test_a_registry_is_read_beside_the_packages_that_pythonpath_names(
    repository: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("open(__file__ + '.seen', 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = revisions.cases(revisions.find("second", repository), source, Filters(targets=("rms_norm",)))
    assert (tmp_path / "sitecustomize.py.seen").exists()
    assert len(found) == len(registry.cases("L1/rms_norm")) - 1, "of the revision's own registry all the same"


def test_a_registry_that_cannot_be_read_is_said(repository: Path, tmp_path: Path) -> None:
    first = revisions.find("first", repository)
    exported = revisions.export(first, tmp_path / "export")
    (exported / "registry" / "tasks" / "L1" / "glu.yaml").write_text("id: 3\n")
    broken = revisions.source(first, exported, tmp_path / "side")
    with pytest.raises(UsageError, match=r"registry of first .* cannot be read by this version of fk"):
        revisions.cases(first, broken, Filters())


def test_a_repository_of_something_else(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "README").write_text("hello")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "x")
    other = revisions.find("HEAD", tmp_path)
    with pytest.raises(UsageError, match=r"has no src/fastkernels/kernels.*give their folders"):
        revisions.source(other, revisions.export(other, tmp_path / "export"), tmp_path / "side")


def test_a_worker_runs_kernels_of_a_revision_that_knows_no_groups_of_ranks() -> None:
    """The harness imports them, and is newer."""
    code = """
import sys, types
class Older(types.ModuleType):
    def __getattr__(self, name): return None
sys.modules["fastkernels.kernels.group"] = None
for name in "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_reduce_norm", "ep_exchange", \\
        "expert_parallel", "parallel_gemm":
    sys.modules["fastkernels.kernels." + name] = Older(name)
import fastkernels.runner.inside.kernel_side
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
