"""Stubs of every registered task: checked without findings, importable, and the baseline's results."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fastkernels import registry
from fastkernels.cli.stubs import command
from fastkernels.errors import UsageError
from fastkernels.loader.candidates import discover
from fastkernels.loader.check import check
from fastkernels.loader.inputs import draw, trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.stubs import stub, write_stubs

BASELINE = Overlay.over_baseline()


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    write_stubs(registry.tasks(), folder, force=False)
    return folder


def test_stubs_of_all_tasks_check_and_shadow_nothing(stubs):
    assert check(stubs) == []
    (found,) = discover([stubs])
    assert list(found.files) == [entry.id for entry in registry.tasks()]
    assert found.shadowed() == ()


@pytest.mark.parametrize("entry", registry.tasks(), ids=lambda entry: entry.id)
def test_a_stub_passes(stubs, entry):
    overlay = Overlay.over_baseline([stubs])
    for variant, name in entry.variants.items():
        cls = getattr(overlay.load(entry.id), name)
        assert overlay.origin(cls) == stubs
        case = next(c for c in registry.cases(entry.id, size="tiny") if c.variant == variant)
        specs = trial_specs(case, build_module(BASELINE, case, "meta"))
        results = [
            bind(build_module(side, case, "cpu"), case, draw(specs, case, 1)).invoke()
            for side in (BASELINE, overlay)
        ]
        assert results[0].keys() == results[1].keys()
        for key, wanted in results[0].items():
            # What the baseline fuses runs part by part in stubs, and may round otherwise.
            error = (results[1][key] - wanted).double().norm()
            assert error <= (1e-6 if wanted.is_floating_point() else 0.0) * wanted.double().norm()


def test_contract_and_signature_are_in_the_stub():
    source = stub(registry.task("L1/rms_norm"))
    assert "y = s / sqrt(mean(s^2) + eps) * weight" in source
    assert "def forward(self, x: Tensor, residual: Tensor | None = None)" in source
    assert "super().forward(x, residual)" in source
    assert max(map(len, source.splitlines())) <= 120


def test_a_single_variant():
    source = stub(registry.task("L1/glu:gelu"))
    assert "class GeluAndMul" in source
    assert "SiluAndMul(" not in source


def test_command_keeps_what_exists(tmp_path):
    arguments = ["--target", "rms_norm", "--output", str(tmp_path)]
    file = tmp_path / "L1/rms_norm.py"
    assert CliRunner().invoke(command, arguments).stdout == f"{file}\n"
    file.write_text("mine")
    result = CliRunner().invoke(command, arguments)
    assert (result.exit_code, result.stdout, file.read_text()) == (0, "", "mine")
    assert "--force" in result.stderr
    CliRunner().invoke(command, [*arguments, "--force"])
    assert file.read_text() == stub(registry.task("rms_norm"))


def test_command_by_level_and_architecture(tmp_path):
    CliRunner().invoke(command, ["--level", "3", "--architecture", "llama", "--output", str(tmp_path)])
    assert [file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.py")] == [
        "L3/decoder_layer.py"
    ]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/L1/rms_norm\.py: Not a directory.*--output"):
        write_stubs([registry.task("rms_norm")], tmp_path / "file", force=False)
