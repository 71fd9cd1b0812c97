"""What an audit must find: rules that accept too much or too little, cases that show nothing."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from fastkernels import registry
from fastkernels.audit import admission, gate
from fastkernels.audit.admission import admit, audit_case
from fastkernels.judge import bounds, compare
from fastkernels.kernels import base as kernels
from fastkernels.loader import inputs
from fastkernels.records import AuditCheck, AuditRow, Case, TensorSpec
from tests.unit.audit.conftest import case_of

NARROW_SUMS = "sums in the dtype of the result"
NORM = "llama-tiny-T23-D64-residual-f32"


def audit(case: Case) -> AuditRow:
    return audit_case(registry.task(case.task), case, "cpu", seed=0)


def checks(case: Case, name: str) -> list[AuditCheck]:
    return [check for check in audit(case).checks if check.name == name]


def in_bfloat16(case: Case) -> Case:
    inputs = {name: spec.model_copy(update={"dtype": "bfloat16"}) for name, spec in case.inputs.items()}
    return case.model_copy(update={"dtype": "bfloat16", "inputs": inputs})


def bad(row: AuditRow) -> dict[str, str]:
    return {check.name: check.reason for check in row.checks if check.good is False}


def test_a_rule_that_allows_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "K", 5e4)
    row = audit(case_of("L1/rms_norm", NORM))
    assert not row.admitted
    for name in ("written with fewer bits, out.0", "arithmetic one step narrower"):
        assert bad(row)[name].startswith("the judge accepts it; moves the right out.0 by ")


def test_a_margin_below_four_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("L1/rms_norm", NORM)
    good = audit(case)
    assert good.admitted
    assert good.margin is not None
    monkeypatch.setattr(admission, "MARGIN", 1.01 * good.margin)
    row = audit(case)
    assert list(bad(row)) == [good.closest]
    assert "times as wrong as the worst golden" in bad(row)[good.closest]


def test_few_bits_in_a_sum_of_two_parts_are_no_mistake() -> None:
    (check,) = checks(in_bfloat16(case_of("L1/linear", "llama-tiny-T8-K64-N64-f32")), NARROW_SUMS)
    assert (check.good, check.elsewhere) == (None, False)
    assert "rounding alone by" in check.reason
    case = in_bfloat16(case_of("L1/softmax", "tiny-T3-V997-f32"))
    ((name, spec),) = case.inputs.items()
    wide = {name: spec.model_copy(update={"shape": (3, 30_000)})}
    (check,) = checks(case.model_copy(update={"inputs": wide}), NARROW_SUMS)
    assert check.good


def test_a_mistake_that_is_lost_among_roundings_is_left_to_another_case() -> None:
    """An epsilon of 1e-5 beside numbers of about one."""
    case = in_bfloat16(case_of("L1/rms_norm", "llama-tiny-T8-D64-residual-f32"))
    one_row = {name: spec.model_copy(update={"shape": (1, 64)}) for name, spec in case.inputs.items()}
    case = case.model_copy(update={"inputs": one_row})
    (check,) = checks(case, "eps skipped")
    assert (check.good, check.elsewhere) == (None, True)
    assert "eps skipped" in admit(case.task, [audit(case)]).refused[case.id]


def test_a_case_that_shows_a_tile_may_leave_a_feature_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where inputs are sparse, a row may be nothing but that feature."""
    monkeypatch.setattr(admission, "DISTRIBUTIONS", ("normal",))
    case = in_bfloat16(case_of("L1/linear", "llama-tiny-T8-K64-N64-f32"))
    feature, tile = (f"param.weight without its last {what}" for what in ("feature", "16 features"))
    monkeypatch.setattr(admission, "DECIDED", math.inf)
    assert tile not in {check.name for check in audit(case).checks}
    monkeypatch.setattr(admission, "MARGIN", math.inf)
    both = bad(audit(case))
    assert both.keys() >= {feature, tile}
    small, large = (float(re.search("only (.*) times", both[name])[1]) for name in (feature, tile))
    monkeypatch.setattr(admission, "MARGIN", math.sqrt(small * large))
    found = {check.name: check for check in audit(case).checks}
    assert (found[feature].good, found[feature].elsewhere, found[tile].good) == (None, True, True)


def test_a_rule_that_refuses_right_kernels_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "floor", lambda dtype: 1e-12)
    monkeypatch.setattr(bounds, "K", 0.01)
    row = audit(case_of("L1/rms_norm", NORM))
    goldens = {check.name for check in row.checks if check.kind == "golden"}
    assert bad(row)
    assert bad(row).keys() <= goldens
    assert not row.admitted


def test_a_case_whose_answer_is_constant_is_found() -> None:
    case = case_of("L1/softmax", "tiny-T7-V2-f32")
    (name, spec), *_ = case.inputs.items()
    single = case.model_copy(update={"inputs": {name: spec.model_copy(update={"shape": (7, 1)})}})
    row = audit(single)
    assert {"does work", "ones as out.0", "previous as out.0"} <= bad(row).keys()
    assert not admit(case.task, [row]).admitted


def test_a_reference_that_is_not_deterministic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels.registered["softmax"]
    right = kernel.reference
    calls = itertools.count()  # two draws of a random number may round to the same: 1 run in 100 did
    monkeypatch.setattr(kernel, "reference", lambda x: right(x) * (1 + 1e-7 * next(calls)))
    row = audit(case_of("L1/softmax", "tiny-T3-V997-f32"))
    assert "deterministic" in bad(row)


def test_cases_in_which_no_state_is_ever_read_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("L1/gla", "recurrent-gla-tiny-decode-8x200-f32")
    assert audit(case).admitted
    monkeypatch.setattr(inputs, "_settle_states", lambda pool, case, seed, is_kept: pool.zero_())
    task = admit(case.task, [audit(case)])
    assert "arg.state of the call before" in task.refused[case.id]


def test_a_state_in_the_dtype_of_a_model_fails_in_that_dtype_too() -> None:
    case = case_of("L1/gla", "recurrent-gla-tiny-decode-8x200-f32")
    given = {
        name: spec.model_copy(update={"dtype": "bfloat16"})
        if isinstance(spec, TensorSpec) and spec.dtype == "float32" and name != "state"
        else spec
        for name, spec in case.inputs.items()
    }
    row = audit(case.model_copy(update={"dtype": "bfloat16", "inputs": given}))
    (check,) = [check for check in row.checks if check.name == "arg.state kept in bfloat16"]
    assert check.good


def test_a_rule_that_does_not_look_at_states_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("L1/gla", "recurrent-gla-tiny-decode-8x200-f32")

    class WithoutStates(compare.Standard):
        def __init__(self, baseline, oracle):  # type: ignore[no-untyped-def]
            super().__init__(baseline, {"out.0": oracle["out.0"]})

    monkeypatch.setattr(gate, "Standard", WithoutStates)
    found = bad(audit(case))
    assert {"empty as arg.state", "last row not written, arg.state"} <= found.keys()


def test_a_case_that_is_refused_leaves_the_others_admitted() -> None:
    def row(case: str, good: bool) -> AuditRow:
        found = AuditCheck(kind="mutant", name="eps skipped", good=good, reason="accepted")
        return AuditRow(
            task="L1/x", variant="default", case=case, rule="values", admitted=good, margin=None, draws=7,
            checks=(found,),
        )  # fmt: skip

    task = admit("L1/x", [row("good", True), row("bad", False)])
    assert (task.admitted, task.refused) == (True, {"bad": "eps skipped: accepted"})
    alone = admit("L1/x", [row("bad", False)])
    assert (alone.admitted, alone.problems) == (False, ("none of 1 audited cases is admitted",))
    assert alone.refused == {"bad": "eps skipped: accepted"}


def test_what_one_case_leaves_open_another_has_to_show() -> None:
    def row(case: str, **check: object) -> AuditRow:
        found = AuditCheck(kind="input", name="arg.seeds of the call before", **check)  # type: ignore[arg-type]
        return AuditRow(
            task="L1/x", variant="default", case=case, rule="sampler", admitted=True, margin=None, draws=7,
            checks=(found,),
        )  # fmt: skip

    open_row, shown = row("few", good=None, elsewhere=True), row("many", good=True)
    assert admit("L1/x", [open_row, shown]).admitted
    alone = admit("L1/x", [open_row])
    assert not alone.admitted
    assert "not shown by this case, nor by any other" in alone.refused["few"]
    other = row("other", good=True).model_copy(
        update={"checks": (AuditCheck(kind="mutant", name="eps skipped", good=True),)}
    )
    beside = admit("L1/x", [open_row, other])
    assert (beside.admitted, list(beside.refused)) == (True, ["few"])


def test_a_case_shows_nothing_for_others_once_it_is_refused_itself() -> None:
    """`few` leaves the seeds to `many`, which leaves its epsilon to nobody."""
    seeds, eps = "arg.seeds of the call before", "eps skipped"

    def row(case: str, **checks: bool) -> AuditRow:
        """Whether it shows a mistake, or leaves it to another case."""
        found = tuple(
            AuditCheck(kind="mutant", name=name, good=shown or None, elsewhere=not shown)
            for name, shown in ((seeds, checks.get("seeds")), (eps, checks.get("eps")))
            if shown is not None
        )
        return AuditRow(
            task="L1/x", variant="default", case=case, rule="values", admitted=True, margin=None, draws=7,
            checks=found,
        )  # fmt: skip

    task = admit("L1/x", [row("few", seeds=False), row("many", seeds=True, eps=False), row("third")])
    assert (task.admitted, sorted(task.refused)) == (True, ["few", "many"])


@pytest.mark.parametrize(
    ("task", "case"),
    [
        ("L1/rms_norm", "tiny-T37-D64-f16"),
        ("L1/rms_norm", "tiny-T37-D64-residual-f16"),
        ("L1/layer_norm", "tiny-T37-D64-f16"),
        ("L1/group_norm", "tiny-odd-groups-f16"),
        ("L1/gated_rms_norm", "tiny-T37-HV4x16-f16"),
    ],
)
def test_norms_whose_squares_overflow_in_float16_fail(task, case):
    row = audit(case_of(task, case))
    (squares,) = [check for check in row.checks if check.name == "squares in float16"]
    assert squares.good, squares
    assert squares.error_ratio is None or squares.error_ratio > 100
    assert bad(row) == {}
