from __future__ import annotations

import json
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from fastkernels.cli import diagnosis, main
from fastkernels.settings import Settings


@pytest.fixture(scope="module")
def found() -> dict:
    result = CliRunner().invoke(main, ["doctor", "--json", "-"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_every_setting_has_an_origin(found: dict) -> None:
    assert {s["name"] for s in found["settings"]} == set(Settings.model_fields)
    assert all(s["origin"] for s in found["settings"])


def test_what_does_not_work_says_how_to_get_it(found: dict) -> None:
    checks = {check["name"]: check for check in found["checks"]}
    assert {
        "cuda",
        "triton interpreter",
        "compiler",
        "cpu threads",
        "mlflow",
        "cluster",
        "isolation",
    } <= set(checks)
    assert checks["triton interpreter"]["works"]
    for name, check in checks.items():
        assert check["works"] or check["fix"] or name == "triton", check
    # Whatever this machine allows, the probe itself must have run.
    assert checks["isolation"]["detail"].startswith("workers are separated by processes, environment, home")


def test_libraries_say_what_they_implement_and_how_to_get_them(found: dict) -> None:
    libraries = {library["name"]: library for library in found["libraries"]}
    assert {"deep_gemm", "fla", "flashinfer", "liger", "quack", "sgl_kernel", "vllm"} <= set(libraries)
    assert {"rms_norm", "prefill_attention"} <= set(libraries["flashinfer"]["kernels"])
    for library in libraries.values():
        assert bool(library["version"]) != bool(library["fix"]), library
    if not libraries["flashinfer"]["version"]:
        assert libraries["flashinfer"]["fix"] == "pip install -e '.[gpu]' in the checkout"


def test_versions_are_those_of_the_distribution_that_brought_the_package(monkeypatch) -> None:
    monkeypatch.setattr(diagnosis.metadata, "version", {"flash-attn": "2.8", "flash-attn-4": "4.0"}.get)
    owners = {"flash_attn": ["flash-attn", "flash-attn-4"]}
    assert diagnosis._version("flash_attn", "flash_attn", owners) == "flash-attn 2.8"
    assert diagnosis._version("flash_attn_4", "flash_attn.cute", owners) == "flash-attn-4 4.0"
    assert diagnosis._version("quack", "quack", owners) == "installed"


def test_machine(found: dict) -> None:
    assert found["environment"]["torch"]
    assert found["environment"]["cores"] >= 1


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the slow probes: what they say is shown, also when they hang."""

    def hangs(*_args, **_kwargs):
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", hangs)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    shown = "Machine", "What works here", "Libraries", "Settings", "no answer in", "registry/settings.yaml"
    assert all(text in result.stdout for text in shown)
    diagnoses, _, _ = result.stdout.partition("Settings")  # after which come paths
    assert max(map(len, diagnoses.splitlines())) <= 100


@pytest.mark.parametrize(("together", "works"), [(0.02, True), (0.05, True), (0.07, False)])
def test_threads_that_wait_for_a_busy_core_are_told(monkeypatch, together: float, works: bool) -> None:
    said = subprocess.CompletedProcess([], 0, f"2 0.03 {together}\n", "")
    monkeypatch.setattr(diagnosis, "_probe", lambda code: said)
    check = diagnosis._threads()
    assert check.works is works
    assert f"2 of torch take {together / 0.03:.1f} times as long as one" in check.detail
    assert "OMP_NUM_THREADS" in check.fix


def test_what_works_needs_no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [diagnosis.Check("one", works, "", "get it") for works in (True, False)]
    monkeypatch.setattr(diagnosis, "_checks", lambda: both)
    assert [check.fix for check in diagnosis.checks()] == ["", "get it"]


def test_a_state_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FK_STATE_DIR", str(tmp_path / "below"))
    assert diagnosis._history().works
    monkeypatch.setattr(diagnosis.os, "access", lambda *_: False)
    check = diagnosis._history()
    assert not check.works
    assert "FK_STATE_DIR" in check.fix
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@host")
    assert "secret" not in diagnosis._history().detail


@pytest.mark.parametrize("built", [True, False])
def test_flashinfer_that_compiles_is_told_from_one_that_is_built(monkeypatch, built: bool) -> None:
    here = {"flashinfer", "flashinfer_jit_cache"} if built else {"flashinfer"}
    spec = ModuleSpec("found", None, origin="a file")
    monkeypatch.setattr(diagnosis.importlib.util, "find_spec", lambda name: spec if name in here else None)
    (check,) = diagnosis._flashinfer()
    assert check.works is built
    assert built or "flashinfer-jit-cache" in check.fix
