"""measure/environment.py: what is known of this machine, without torch and without failing."""

import subprocess
import sys
from datetime import datetime

import pytest

from fastkernels.errors import MachineError
from fastkernels.measure import environment as module
from fastkernels.measure.environment import environment, git_revision, require_device, version
from fastkernels.records import Environment


def test_the_record_of_this_machine():
    found = environment("cpu")
    assert found.device == found.host_cpu != ""
    assert found.cores >= 1
    assert found.memory_gib > 0.5
    assert found.torch == version("torch")
    assert found.libraries["numpy"] == version("numpy")
    assert found.cuda is None
    assert found.driver is None
    assert datetime.fromisoformat(found.started_at).utcoffset().total_seconds() == 0
    assert Environment.model_validate_json(found.model_dump_json()) == found


def test_it_imports_no_torch():
    code = (
        "import sys; from fastkernels.measure.environment import environment; environment('cpu');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_outside_a_checkout_there_is_no_revision(tmp_path):
    assert git_revision(tmp_path) is None


def test_a_missing_git_is_no_error(monkeypatch, tmp_path):
    def absent(*args, **kwargs):
        raise FileNotFoundError("git")

    monkeypatch.setattr(module.subprocess, "run", absent)
    assert git_revision(tmp_path) is None


def test_the_device_to_measure_on(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert require_device() == require_device("cpu") == "cpu"
    with pytest.raises(MachineError, match="fk doctor") as raised:
        require_device("cuda")
    assert raised.value.exit_code == 3
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert require_device() == require_device("cuda") == "cuda"
    assert require_device("cpu") == "cpu"


def test_unknown_packages_have_no_version():
    assert version("no-such-package-of-ours") is None
