"""The audit judges as a trial does."""

from __future__ import annotations

import dataclasses

from fastkernels.audit.gate import Gate
from fastkernels.audit.subject import RIGHT
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
