"""`run_audit`: which cases it takes, and those that this machine cannot hold."""

from __future__ import annotations

import json

import pytest
import torch

from fastkernels import registry
from fastkernels.audit import room
from fastkernels.audit.run import AuditRequest, run_audit, selected
from fastkernels.errors import MachineError, UsageError

REQUEST = AuditRequest(targets=("rope",), case_glob="*", size="tiny", device="cpu")


def failing(monkeypatch, error: Exception) -> None:
    def audit_case(*_: object) -> None:
        raise error

    monkeypatch.setattr(room, "audit_case", audit_case)


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_one_case_of_each_variant_and_all_of_a_sampler(size) -> None:
    for entry in registry.tasks():
        every, some = registry.cases(entry, size), selected(entry, size)
        variants = [case.variant for case in some]
        assert set(variants) == {case.variant for case in every}
        assert some == every if entry.rule == "sampler" else len(set(variants)) == len(variants)
        assert selected(entry, size, case_glob="*") == every


def test_blocks_and_models_are_tiny_unless_they_are_asked_for() -> None:
    asked, unasked = AuditRequest(device="cuda", size="full"), AuditRequest(device="cuda")
    entries = [registry.task(name) for name in ("L1/glu", "L2/gated_mlp", "L3/decoder_layer", "L4/llama")]
    assert [unasked.size_of(entry) for entry in entries] == ["full", "full", "tiny", "tiny"]
    assert {asked.size_of(entry) for entry in entries} == {"full"}
    assert {AuditRequest(device="cpu").size_of(entry) for entry in entries} == {"tiny"}


@pytest.mark.parametrize(
    "error",
    [
        MachineError("no room"),
        torch.OutOfMemoryError("CUDA out of memory."),
        torch.AcceleratorError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", 2),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
)
def test_a_case_without_room_is_told_and_the_others_go_on(monkeypatch, error: Exception) -> None:
    failing(monkeypatch, error)
    freed: list[str] = []
    monkeypatch.setattr(room, "_give_back", freed.append)
    told = []
    report = run_audit(REQUEST, lambda progress: told.append(progress.text))
    cases = [text.removesuffix(" audited") for text in told[1:]]
    assert len(cases) > 1
    assert report.unaudited == tuple(f"{case}: {str(error).splitlines()[0]}" for case in cases)
    assert (report.rows, freed) == ((), ["cpu"] * len(cases))


@pytest.mark.parametrize(
    "error", [RuntimeError("a shape"), torch.AcceleratorError("CUDA error: misaligned address", 716)]
)
def test_any_other_error_ends_the_audit(monkeypatch, error: Exception) -> None:
    failing(monkeypatch, error)
    with pytest.raises(type(error), match=str(error)):
        run_audit(REQUEST)


def test_what_a_report_has_is_left_out(monkeypatch, tmp_path) -> None:
    failing(monkeypatch, MachineError("no room"))
    every = run_audit(REQUEST).unaudited
    report, first = tmp_path / "report.json", every[0].partition(": ")[0].split(" ")
    report.write_text(json.dumps({"rows": [{"task": first[0], "case": first[1]}]}))
    assert run_audit(REQUEST.model_copy(update={"resume": report})).unaudited == every[1:]
    rows = [dict(zip(("task", "case"), reason.partition(": ")[0].split(" "))) for reason in every]
    report.write_text(json.dumps({"rows": rows}))
    with pytest.raises(UsageError, match=f"has all {len(every)} cases"):
        run_audit(REQUEST.model_copy(update={"resume": report}))


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [1]}', '{"rows": [{"task": "L1/rope"}]}'])
def test_what_is_no_report_is_no_report_to_resume(tmp_path, text: str) -> None:
    report = tmp_path / "report.json"
    report.write_text(text)
    with pytest.raises(UsageError, match="no report of an audit"):
        run_audit(REQUEST.model_copy(update={"resume": report}))
