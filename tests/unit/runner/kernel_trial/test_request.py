"""What a request judges, and what its errors tell the user to do."""

from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.errors import MachineError, NotFoundError, UsageError
from fastkernels.runner.kernel_trial.request import KernelsRequest, candidate_sets, out_of_reach, plan

CANDIDATES = Path(__file__).parents[3] / "candidates"


def request(**arguments) -> KernelsRequest:
    return KernelsRequest(
        **{"device": "cpu", "size": "tiny", "contract": "host", "budget_s": 1.0, "seed": 1} | arguments
    )


def planned(**arguments):
    return plan(request(**arguments))


def test_a_candidate_is_judged_on_every_case_of_its_task() -> None:
    (job,) = planned(targets=("rms_norm",), candidates=(str(CANDIDATES / "honest"),))
    assert job.name == "honest"
    assert job.is_candidate
    held = [case.id for case in registry.cases("rms_norm", size="tiny") if case.variant == "default"]
    assert [w.case.id for w in job.works] == held
    assert not any(w.settled for w in job.works)


def test_without_a_target_only_the_replaced_tasks_are_judged() -> None:
    (job,) = planned(candidates=(str(CANDIDATES / "honest"),))
    assert {w.entry.id for w in job.works} == {"L1/rms_norm"}


def test_a_higher_target_is_judged_through_the_candidate_below_it() -> None:
    (job,) = planned(targets=("L3/decoder_layer",), candidates=(str(CANDIDATES / "honest"),))
    assert {w.entry.id for w in job.works} == {"L3/decoder_layer"}
    assert job.works


def test_the_source_alone_settles_wrong_names_and_forbidden_acts() -> None:
    jobs = planned(targets=("rms_norm",), candidates=(str(CANDIDATES),))
    settled = {job.name: {w.settled.label for w in job.works if w.settled} for job in jobs}
    assert settled["missing_class"] == {"SIGNATURE_MISMATCH"}
    assert settled["other_signature"] == {"SIGNATURE_MISMATCH"}
    assert settled["patched_harness"] == {"TAMPERED(patch)"}
    assert settled["honest"] == set()
    assert settled["syntax_error"] == set(), "left to the run: it has the better message"


def test_a_folder_in_the_place_of_a_task_file_is_a_failed_import_and_not_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "L1" / "rms_norm.py").mkdir(parents=True)
    (job,) = planned(targets=("rms_norm",), candidates=(str(tmp_path),))
    assert {work.settled.label for work in job.works if work.settled} == {"IMPORT_ERROR"}
    assert all(work.settled for work in job.works)


def test_a_helper_that_nobody_could_look_over_is_no_import(tmp_path: Path) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text("from torch.nn import RMSNorm\nfrom . import _helper\n")
    (tmp_path / "L1" / "_helper.py").write_text(f"x = {'-' * 500}1\n")
    (job,) = planned(targets=("rms_norm",), candidates=(str(tmp_path),))
    (told,) = {work.settled.label + work.settled.failure.message for work in job.works}
    assert told == "IMPORT_ERRORnested more than 150 levels deep"


def test_a_variant_that_a_file_leaves_out_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "L1").mkdir()
    source = (registry.lookup.data_dir("baseline") / "L1" / "glu.py").read_text()
    (tmp_path / "L1" / "glu.py").write_text(source.replace("class GeluAndMul", "class Unused"))
    (job,) = planned(targets=("glu",), candidates=(str(tmp_path),))
    assert {w.case.variant for w in job.works} == registry.task("glu").variants.keys() - {"gelu"}


def test_a_variant_that_only_the_baseline_has_is_not_judged_as_the_candidates(tmp_path: Path) -> None:
    (tmp_path / "L1").mkdir()
    base = "from fastkernels.baseline.L1.glu import SiluAndMul as Base\n"
    (tmp_path / "L1" / "glu.py").write_text(f"{base}class SiluAndMul(Base):\n    pass\n")
    with pytest.raises(UsageError, match=r"No candidate for L1/glu:gelu in .*, only for L1/glu:default\."):
        planned(targets=("glu:gelu",), candidates=(str(tmp_path),))


def test_what_is_not_judged_is_told(tmp_path: Path) -> None:
    for name in ("glu", "rmsnorm"):
        (tmp_path / "mine" / "L1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / "L1" / f"{name}.py").write_text("")
    asked = request(targets=("rms_norm",), candidates=(str(CANDIDATES / "honest"), str(tmp_path / "mine")))
    file, idle = out_of_reach(candidate_sets(asked), {job.name for job in plan(asked)})
    assert "mine/L1/rmsnorm.py is no registered task" in file
    assert idle == "not judged, since nothing that they replace was asked for: mine"
    asked = request(targets=("rms_norm",), candidates=(str(CANDIDATES / "honest"),))
    assert [*out_of_reach(candidate_sets(asked), {job.name for job in plan(asked)})] == []


def test_cases_are_chosen_by_glob() -> None:
    (job,) = planned(
        targets=("rms_norm",),
        candidates=(str(CANDIDATES / "honest"),),
        case_glob="llama-tiny-T16-D64-residual",
    )
    assert [w.case.id for w in job.works] == ["llama-tiny-T16-D64-residual-f32"]


def test_a_self_test_has_no_layers() -> None:
    (job,) = planned(targets=("rms_norm",), self_test=True)
    assert job.name == "self-test"
    assert job.layers == ()
    assert not job.is_candidate


def test_providers_are_one_job_each_with_reasons_for_those_that_cannot_run_here() -> None:
    jobs = {job.name: job for job in planned(targets=("rms_norm",), providers=True)}
    torch_job = jobs["impl:torch"]
    assert torch_job.implementations["L1/rms_norm"] == {"rms_norm": "torch", "add_rms_norm": "torch"}
    assert torch_job.works
    assert not jobs["impl:flashinfer"].works
    assert "cuda" in jobs["impl:flashinfer"].unavailable[0][1]
    assert jobs["impl:reference"].works


def test_providers_of_a_task_without_kernels_is_an_error() -> None:
    with pytest.raises(UsageError, match="no kernels of its own"):
        planned(targets=("mamba_mixer",), providers=True)


def test_nothing_to_judge_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(
        UsageError, match=r"No candidate for L1/glu .*fk stubs --target L1/glu.*--providers.*--self-test"
    ):
        planned(targets=("rms_norm", "glu"), candidates=(str(CANDIDATES / "honest"),))
    monkeypatch.setenv("FK_CANDIDATES", str(tmp_path))
    with pytest.raises(UsageError, match=r"No candidate for L1/\w+, L1/\w+, L1/\w+ and \d+ more in "):
        planned()
    with pytest.raises(UsageError, match="No candidate for L1/softmax"):
        planned(targets=("softmax",))


def test_unknown_names_have_suggestions() -> None:
    with pytest.raises(NotFoundError, match="Did you mean L1/rms_norm"):
        planned(targets=("rmsnorm",), self_test=True)
    with pytest.raises(UsageError, match="No case 'T99999'"):
        planned(targets=("rms_norm",), self_test=True, case_glob="T99999")


def test_flags_that_exclude_each_other() -> None:
    flags = {"device": "cpu", "size": None, "candidates": ()}
    with pytest.raises(UsageError, match="one at a time"):
        KernelsRequest.parse(self_test=True, providers=True, **flags)
    with pytest.raises(UsageError, match="leave out --candidates"):
        KernelsRequest.parse(self_test=True, providers=False, **{**flags, "candidates": ("x",)})


def test_defaults_come_from_the_machine() -> None:
    import torch

    resolved = KernelsRequest(device="cpu").resolved()
    assert (resolved.size, resolved.contract) == ("tiny", "host")
    assert resolved.budget_s
    assert resolved.seed != KernelsRequest(device="cpu").resolved().seed
    with pytest.raises(UsageError, match="needs a CUDA device"):
        KernelsRequest(device="cpu", contract="graph").resolved()
    if not torch.cuda.is_available():
        with pytest.raises(MachineError, match="--device cuda"):
            KernelsRequest(device="cuda").resolved()
