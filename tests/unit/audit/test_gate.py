"""The audit judges as a trial does."""

from __future__ import annotations

import dataclasses

import pytest

from fastkernels.audit.gate import Gate
from fastkernels.audit.subject import RIGHT
from fastkernels.errors import MachineError
from fastkernels.judge import oracle
from tests.unit.audit.conftest import case_of, subject_of


def test_where_logits_tie_another_choice_is_as_right() -> None:
    subject = subject_of(case_of("L1/moe_routing", "tiny-T37-E60-k4-f32"))
    draw = subject.draw("normal", seed=0)
    logits_TE = draw.inputs["arg.router_logits"].clone()
    logits_TE[:, :2] = logits_TE.max() + 1
    inputs = {**draw.inputs, "arg.router_logits": logits_TE}
    tied = dataclasses.replace(draw, inputs=inputs)
    tied = dataclasses.replace(tied, right=subject.run(tied, RIGHT))
    gate = Gate(subject, seed=0)
    gate.open(tied)
    chosen_TK = tied.right["out.1"]
    other_TK = chosen_TK[:, [1, 0, 2, 3]]
    assert gate.judge("the other first", {**tied.right, "out.1": other_TK}).passed
    assert not gate.judge("the last first", {**tied.right, "out.1": chosen_TK.flip(1)}).passed


def test_no_case_is_audited_with_an_oracle_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial says so in a note; an audit would call a rule right or wrong by it."""
    case = case_of("L1/rms_norm", "llama-tiny-T8-D64-f32")
    inputs = {name: spec.model_copy(update={"dtype": "bfloat16"}) for name, spec in case.inputs.items()}
    subject = subject_of(case.model_copy(update={"dtype": "bfloat16", "inputs": inputs}))
    draw = subject.draw("normal", seed=0)
    elements = sum(t.numel() for t in draw.inputs.values())
    monkeypatch.setattr(oracle, "allocatable_bytes", lambda device: 2 * 8 * elements)
    with pytest.raises(MachineError, match="No audit with an oracle in float32"):
        Gate(subject, seed=0).open(draw)
