"""A failure that is written down: what it holds, and that its script says the same without the harness."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.judge.verdict import Verdict
from fastkernels.loader.inputs import draw, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Failure, Place
from fastkernels.report.files import require_new_folder
from fastkernels.runner.kernel_trial.bench import Evidence
from fastkernels.runner.kernel_trial.reproduction import Reproductions, packed
from fastkernels.runner.kernel_trial.request import Job, Work
from tests.unit.runner.conftest import small_case

PLACE = Place(output="out.0", index=(2, 3), expected="1", got="2", beyond=1, elements=8)
FAILURE = Failure(message='too """large\n\\', place=PLACE, distribution="extreme")
WRONG = Verdict.failed("WRONG", FAILURE, "value")
PLAIN = """
import torch

class RMSNorm(torch.nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))

    def forward(self, *inputs, **named):
        (x,) = [value for value in (*inputs, *named.values()) if value is not None]
        return x * self.weight
"""
EXTENDS = "from .rms_norm__below import RMSNorm as Base\n\nclass RMSNorm(Base): pass\n"


def written(tmp_path, text, inputs=None, verdict=WRONG):
    """The folder of a failure of this candidate, which returned nothing but twos."""
    case = small_case("L1/rms_norm")
    file = tmp_path / "mine" / "L1" / "rms_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    specs = trial_specs(case, build_module(Overlay.over_baseline(), case, "meta"))
    drawn = draw(specs, case, 0)
    x = next(value for name, value in drawn.items() if name.startswith("arg."))
    expected = {"out.0": torch.ones_like(x, dtype=torch.float64)}
    evidence = Evidence(inputs(drawn) if inputs else drawn, expected, {"out.0": torch.full_like(x, 2)})
    job = Job("mine", layers=(file.parents[1],), files={case.task: file})
    work = Work(registry.task(case.task), case)
    kept = Reproductions(tmp_path / "out", "cpu")
    kept.add(job, work, SimpleNamespace(verdict=verdict, evidence=evidence))
    return tmp_path / "out" / "mine-L1-rms_norm", drawn, kept


def run(folder) -> str:
    done = subprocess.run([sys.executable, folder / "run.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_calls_the_file_with_the_inputs_alone(tmp_path):
    folder, drawn, _ = written(tmp_path, PLAIN)
    script = (folder / "run.py").read_text()
    assert len(script.splitlines()) < 40
    assert "fastkernels" not in script
    assert {f.name for f in folder.iterdir()} == {
        "inputs.safetensors", "expected.safetensors", "actual.safetensors", "run.py"
    }  # fmt: skip
    (x,) = [value for name, value in drawn.items() if name.startswith("arg.")]
    got = float((x * drawn["param.weight"])[2, 3])
    said = run(folder)
    assert f"at [2, 3] expected 1, got {got:.6g}" in said
    assert "as in the trial: False" in said


def test_a_file_that_extends_another_is_built_by_fastkernels(tmp_path):
    folder, _, _ = written(tmp_path, EXTENDS)
    assert (folder / "case.json").is_file()
    assert "out.0: relative error" in run(folder)


def test_an_input_that_is_a_view_is_one_in_the_script(tmp_path):
    def strided(drawn):
        return {n: _within(value) if n.startswith("arg.") else value for n, value in drawn.items()}

    text = PLAIN.replace("return x", 'print("strides", x.stride())\n        return x')
    folder, drawn, _ = written(tmp_path, text, strided)
    (x,) = [value for name, value in drawn.items() if name.startswith("arg.")]
    assert f"strides {_within(x).stride()}" in run(folder)


def _within(x):
    """The same values in the middle of a wider tensor."""
    wide = torch.full((x.shape[0], 3 * x.shape[1]), torch.nan, dtype=x.dtype)
    wide[:, x.shape[1] : 2 * x.shape[1]] = x
    return wide[:, x.shape[1] : 2 * x.shape[1]]


def test_views_of_one_memory_are_stored_once():
    qkv = torch.arange(24.0).view(2, 12)
    given = {"arg.query": qkv[:, :8], "arg.key": qkv[:, 8:], "arg.other": torch.ones(3)}
    stored, views = packed(given)
    assert set(stored) == {"storage.0", "arg.other"}
    for name, (base, *how) in views.items():
        assert torch.equal(stored[base].as_strided(*how), given[name])


def test_the_first_failure_alone_is_written_and_told(tmp_path):
    folder, _, kept = written(tmp_path, PLAIN)
    before = load_file(folder / "inputs.safetensors")
    case = small_case("L1/rms_norm")
    job, work = Job("mine"), Work(registry.task(case.task), case)
    kept.add(job, work, SimpleNamespace(verdict=WRONG, evidence=None))
    assert before.keys() == load_file(folder / "inputs.safetensors").keys()
    (told,) = kept.told([SimpleNamespace(verdict="WRONG(value)")])
    assert "the first failure of mine in L1/rms_norm: python" in told


def test_what_is_not_written_is_named(tmp_path):
    kept = Reproductions(tmp_path / "out", "cpu")
    assert "nothing failed, and nothing is written" in next(
        iter(kept.told([SimpleNamespace(verdict="PASSED")]))
    )
    case = small_case("L1/rms_norm")
    tampered = Verdict.failed("TAMPERED", Failure(message="no"), "global-state")
    work = Work(registry.task(case.task), case)
    kept.add(Job("mine"), work, SimpleNamespace(verdict=tampered, evidence=None))
    (told,) = kept.told([SimpleNamespace(verdict="TAMPERED(global-state)")])
    assert "of mine in L1/rms_norm nothing is written: TAMPERED(global-state)" in told
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_filled_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path, ""):
        with pytest.raises(UsageError, match="--reproduce"):
            require_new_folder(str(folder), "--reproduce")
    require_new_folder(tmp_path / "new", "--reproduce")
    assert not (tmp_path / "new").exists()
