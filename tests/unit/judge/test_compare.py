"""judge/compare.py: trivial and downgraded candidates fail, honest alternates pass, the quick gate loses
none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fastkernels.judge import bounds, compare, distance
from fastkernels.judge.distance import Errors

from .conftest import EPS, D, T, Trial, norm


def judge(trial: Trial, candidate: Tensor) -> compare.Comparison:
    return compare.Standard(trial.baseline, trial.oracle).compare({"out.0": candidate})


def mantissa(x: Tensor, bits: int) -> Tensor:
    """Round to `bits` explicit mantissa bits, as a narrower float format would."""
    fraction, exponent = torch.frexp(x.double())
    return torch.ldexp((fraction * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponent).to(x.dtype)


# ---------------------------------------------------------------- what must pass


def test_the_baseline_passes_against_itself_at_half_the_allowed_error(trial):
    found = judge(trial, trial.baseline["out.0"])
    assert found.passed
    assert 0 < found.error_ratio <= 1
    assert found.baseline_error == found.candidate_error > 0


def test_torch_rms_norm_passes(trial):
    y = torch.nn.functional.rms_norm(trial.x_TD, (D,), trial.weight_D, EPS)
    assert judge(trial, y).passed


def test_another_reduction_order_passes(trial):
    x = trial.x_TD.float()
    total = torch.zeros(T, 1)
    for column in range(D - 1, -1, -1):  # one element at a time, backwards
        total += x[:, column : column + 1] ** 2
    y = (x / torch.sqrt(total / D + EPS)).to(trial.x_TD.dtype) * trial.weight_D
    assert judge(trial, y).passed


def test_a_more_exact_candidate_passes(trial):
    assert judge(trial, trial.oracle["out.0"].to(trial.x_TD.dtype)).passed


# ---------------------------------------------------------------- what must fail


@pytest.mark.parametrize(
    "trivial",
    ["zeros", "ones", "passthrough", "previous output", "noise of the same moments", "scaled", "negated"],
)
def test_trivial_candidates_fail(trial, trivial):
    truth = trial.baseline["out.0"]
    other = Trial(trial.x_TD.roll(1, 0), trial.weight_D)
    y = {
        "zeros": torch.zeros_like(truth),
        "ones": torch.ones_like(truth),
        "passthrough": trial.x_TD.clone(),
        "previous output": other.baseline["out.0"],
        "noise of the same moments": torch.randn_like(truth) * truth.std() + truth.mean(),
        "scaled": truth * 1.05,
        "negated": -truth,
    }[trivial]
    found = judge(trial, y)
    assert found.verdict.label == "WRONG(value)"
    assert found.error_ratio > 2
    assert "out.0" in found.verdict.failure.message


def test_zeros_fail_even_beside_a_terrible_baseline(trial):
    terrible = {"out.0": trial.baseline["out.0"] * 0.55}  # relative error 0.45: twice that would admit zeros
    found = compare.Standard(terrible, trial.oracle).compare({"out.0": torch.zeros_like(terrible["out.0"])})
    assert found.verdict.label == "WRONG(value)"
    assert found.error_ratio == pytest.approx(2.0)


def test_a_baseline_that_is_wrong_itself_judges_nobody(trial):
    zeros = {"out.0": torch.zeros_like(trial.baseline["out.0"])}
    found = compare.Standard(zeros, trial.oracle).compare(trial.baseline)
    assert found.verdict.label == "INVALID_BASELINE"


def test_precision_downgrade_fails():
    generator = torch.Generator().manual_seed(1)
    wide = Trial(torch.randn(T, D, generator=generator), torch.rand(D, generator=generator) + 0.5)
    rounded = judge(wide, wide.baseline["out.0"].bfloat16().float())
    assert rounded.verdict.label == "WRONG(value)"
    assert rounded.error_ratio > 1000
    half = judge(wide, wide.baseline["out.0"].half().float())
    assert half.error_ratio > 100
    narrow = Trial(wide.x_TD.bfloat16(), wide.weight_D.bfloat16())
    fp8_like = judge(narrow, mantissa(narrow.baseline["out.0"], bits=3))
    assert fp8_like.verdict.label == "WRONG(value)"
    assert fp8_like.error_ratio > 4
    inner = (
        narrow.x_TD * torch.rsqrt(mantissa(narrow.x_TD.square(), 3).mean(-1, keepdim=True)) * narrow.weight_D
    )
    assert judge(narrow, mantissa(inner, 4)).verdict.label == "WRONG(value)"


def test_a_dropped_row_or_tile_fails(trial):
    for rows, columns in (
        (slice(T - 1, T), slice(None)),
        (slice(None), slice(D - 16, D)),
        (slice(3, 4), slice(0, 8)),
    ):
        y = trial.baseline["out.0"].clone()
        y[rows, columns] = 0
        assert judge(trial, y).verdict.label == "WRONG(value)"


def test_one_bad_row_among_very_many_fails():
    """The whole norm hides one row of 100,000 (error 0.003 < 2 x 0.002 in bf16): the worst row does not."""
    generator = torch.Generator().manual_seed(2)
    truth = torch.randn(100_000, 8, generator=generator)
    baseline = truth.bfloat16()
    candidate = baseline.clone()
    candidate[-1] = 0
    found = compare.Standard({"y": baseline}, {"y": truth.double()}).compare({"y": candidate})
    assert found.outputs[0].candidate.whole < found.outputs[0].allowed.whole
    assert found.verdict.label == "WRONG(value)"
    assert "worst row" in found.verdict.failure.message


def test_skipped_epsilon_fails_on_inputs_of_its_scale(trial):
    small = Trial(trial.x_TD * 1e-3, trial.weight_D)
    assert judge(small, small.baseline["out.0"]).passed
    without = norm(small.x_TD.float(), small.weight_D.float(), eps=0).to(small.x_TD.dtype)
    assert judge(small, without).verdict.label == "WRONG(value)"


def test_small_rows_count_beside_large_ones():
    """Mixed scales in one batch: the small rows are zeroed; the whole norm does not notice, their rows do."""
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(16, 64, generator=generator) * torch.tensor([1e4, 1e-4]).repeat(8)[:, None]
    candidate = truth.clone()
    candidate[1::2] = 0
    found = compare.Standard({"y": truth}, {"y": truth.double() * (1 + 1e-8)}).compare({"y": candidate})
    assert found.verdict.label == "WRONG(value)"
    assert found.outputs[0].candidate.whole < 1e-7
    assert found.outputs[0].candidate.row == pytest.approx(1)


# ---------------------------------------------------------------- rows that are zero


def test_rows_that_must_be_zero():
    truth = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    truth[2] = 0
    baseline = truth.float()
    assert compare.Standard({"y": baseline}, {"y": truth}).compare({"y": baseline.clone()}).passed
    stale = baseline.clone()
    stale[2] = 1e-6
    found = compare.Standard({"y": baseline}, {"y": truth}).compare({"y": stale})
    assert found.verdict.label == "WRONG(value)"
    assert "next to zero" in found.verdict.failure.message


def test_rounding_noise_of_the_baseline_in_a_zero_row_is_allowed_twice():
    truth = torch.ones(2, 8, dtype=torch.float64)
    truth[1] = 0
    baseline, near, far = (truth.float().clone() for _ in range(3))
    baseline[1], near[1], far[1] = 1e-9, 1.9e-9, 2.1e-9
    assert compare.Standard({"y": baseline}, {"y": truth}).compare({"y": near}).passed
    assert not compare.Standard({"y": baseline}, {"y": truth}).compare({"y": far}).passed


def test_all_zero_oracle_admits_only_zeros():
    truth = torch.zeros(3, 5, dtype=torch.float64)
    baseline = truth.float()
    assert compare.Standard({"y": baseline}, {"y": truth}).compare({"y": baseline.clone()}).passed
    assert not compare.Standard({"y": baseline}, {"y": truth}).compare({"y": baseline + 1}).passed


# ---------------------------------------------------------------- non-finite values, integers, several
# outputs


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_elements_fail(trial, bad):
    y = trial.baseline["out.0"].clone()
    y[5, 7] = bad
    found = judge(trial, y)
    assert found.verdict.label == "WRONG(nonfinite)"
    assert f"1 of {T * D}" in found.verdict.failure.message


def test_overflow_of_the_dtype_must_be_the_same_infinity():
    truth = torch.tensor([[1.0, 1e6, -1e6]], dtype=torch.float64)
    baseline = truth.half()
    assert baseline.isinf().sum() == 2
    assert compare.Standard({"y": baseline}, {"y": truth}).compare({"y": baseline.clone()}).passed
    assert (
        compare.Standard({"y": baseline}, {"y": truth}).compare({"y": baseline.abs()}).verdict.label
        == "WRONG(nonfinite)"
    )
    nan = torch.where(baseline.isinf(), math.nan, baseline)
    assert (
        compare.Standard({"y": baseline}, {"y": truth}).compare({"y": nan}).verdict.label
        == "WRONG(nonfinite)"
    )
    saturated = baseline.clamp(-6e4, 6e4)
    assert (
        compare.Standard({"y": baseline}, {"y": truth}).compare({"y": saturated}).verdict.label
        == "WRONG(nonfinite)"
    )


@pytest.mark.parametrize("size", [1.7e308, 1e200])
def test_what_float64_cannot_square_or_subtract_is_wrong(size: float):
    truth = torch.full((2, 3), size, dtype=torch.float64)
    other = {"y": truth.clone()}
    other["y"][1, 2] = -size
    assert compare.Standard({"y": truth}, {"y": truth}).compare(other).verdict.status != "PASSED"
    assert compare.suspect(other, {"y": truth}, {"y": Errors(0.1, 0.1, 0.1)})


def test_nothing_at_all_is_not_wrong():
    for shape in ((0,), (3, 0), (0, 3)):
        assert distance.errors(torch.zeros(shape), torch.zeros(shape)) == Errors(0, 0, 0)


def test_a_baseline_of_nan_is_invalid_and_admits_nobody(trial):
    nan = {"out.0": torch.full_like(trial.baseline["out.0"], math.nan)}
    assert compare.Standard(nan, trial.oracle).compare(nan).verdict.label == "INVALID_BASELINE"


def test_every_output_counts(trial):
    both = {"out.0": trial.baseline["out.0"], "out.1": trial.x_TD}
    truth = {**trial.oracle, "out.1": trial.x_TD.double()}
    assert compare.Standard(both, truth).compare(both).passed
    spoiled = {**both, "out.1": trial.x_TD + 1}
    found = compare.Standard(both, truth).compare(spoiled)
    assert found.verdict.label == "WRONG(value)"
    assert found.verdict.failure.message.startswith("out.1")


def test_integers_are_exact():
    ids = torch.tensor([3, 1, 2])
    truth = {"ids": ids}
    assert compare.Standard({"ids": ids}, truth).compare({"ids": ids.clone()}).passed
    assert compare.Standard({"ids": ids}, truth).compare({"ids": ids + 1}).verdict.label == "WRONG(value)"
    assert compare.Standard({"ids": ids + 1}, truth).compare({"ids": ids}).verdict.label == "INVALID_BASELINE"


def test_an_empty_store_fails():
    """A task that returns nothing is judged by the cache it should have written."""
    generator = torch.Generator().manual_seed(5)
    before = torch.randn(9, 16, 2, 8, generator=generator).bfloat16()
    after = before.clone()
    after[3, 5] = torch.randn(2, 8, generator=generator).bfloat16()
    truth = {"arg.key_cache": after.double()}
    assert compare.Standard({"arg.key_cache": after}, truth).compare({"arg.key_cache": after.clone()}).passed
    found = compare.Standard({"arg.key_cache": after}, truth).compare({"arg.key_cache": before})
    assert found.verdict.label == "WRONG(value)"


def test_slices_do_not_change_the_result(trial, monkeypatch):
    whole = distance.errors(trial.baseline["out.0"], trial.oracle["out.0"])
    monkeypatch.setattr(distance, "_SLICE_ELEMENTS", 5 * D)
    assert distance.errors(trial.baseline["out.0"], trial.oracle["out.0"]) == pytest.approx(whole, rel=1e-12)


def test_scalars_vectors_and_strided_views():
    x = torch.arange(1.0, 13).reshape(3, 4)
    assert distance.errors(x.T, x.T.double()) == Errors(0, 0, 0)
    assert distance.errors(torch.tensor(2.0), torch.tensor(1.0).double()) == Errors(1, 1, 0)
    vector = torch.tensor([3.0, 4.0])
    assert distance.errors(vector, torch.tensor([3.0, 0.0]).double()).row == pytest.approx(4 / 3)


# ---------------------------------------------------------------- the quick gate


def test_whatever_passes_the_full_gate_passes_the_quick_gate(trial):
    full = judge(trial, trial.baseline["out.0"])
    truth = trial.oracle["out.0"]
    generator = torch.Generator().manual_seed(6)
    for _ in range(50):  # random honest errors up to the allowed size
        step = torch.randn(T, D, generator=generator, dtype=torch.float64) * truth.abs()
        y = (truth + step * full.allowed["out.0"].whole * torch.rand((), generator=generator)).to(
            trial.x_TD.dtype
        )
        if judge(trial, y).passed:
            assert compare.suspect({"out.0": y}, trial.baseline, full.allowed) is None


def test_the_quick_gate_lets_through_at_most_about_twice_the_allowed_error(trial):
    allowed = judge(trial, trial.baseline["out.0"]).allowed
    y = trial.baseline["out.0"] * (1 + 2.5 * allowed["out.0"].whole)
    assert "away from the baseline" in compare.suspect({"out.0": y}, trial.baseline, allowed)
    zeros = {"out.0": torch.zeros_like(y)}
    assert compare.suspect(zeros, trial.baseline, allowed)
    loosest = {"out.0": Errors(bounds.MAX_ALLOWED, bounds.MAX_ALLOWED)}
    assert compare.suspect(zeros, trial.baseline, loosest)


def test_the_quick_gate_sees_a_bad_row_nan_and_integers(trial):
    allowed = judge(trial, trial.baseline["out.0"]).allowed
    y = trial.baseline["out.0"].clone()
    y[-1, :8] = 0
    assert compare.suspect({"out.0": y}, trial.baseline, allowed)
    y = trial.baseline["out.0"].clone()
    y[0, 0] = math.nan
    assert "non-finite" in compare.suspect({"out.0": y}, trial.baseline, allowed)
    infinite = {"y": torch.tensor([1, math.inf])}
    for other in (-math.inf, math.nan):
        assert "non-finite" in compare.suspect({"y": torch.tensor([1, other])}, infinite, {"y": Errors(0, 0)})
    ids = torch.tensor([1, 2])
    assert "integers" in compare.suspect({"ids": ids + 1}, {"ids": ids}, {})


def test_merge_keeps_the_loosest_bound():
    merged = compare.merge({"y": Errors(0.1, 0.2)}, {"y": Errors(0.05, 0.3), "z": Errors(0.4, 0.4)})
    assert merged == {"y": Errors(0.1, 0.3), "z": Errors(0.4, 0.4)}


def nearly_nothing(rows: int, few: int) -> tuple[Tensor, Tensor]:
    """Means of many values, of which `few` are next to nothing: truth, and what any summation gives of it."""
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(rows, 8, dtype=torch.float64, generator=generator)
    truth[:few] *= 1e-9
    return truth, truth + 1e-8 * torch.randn(rows, 8, dtype=torch.float64, generator=generator)


def test_few_rows_that_are_next_to_nothing_are_compared_as_numbers():
    truth, summed = nearly_nothing(64, few=2)
    standard = compare.Standard({"y": summed.float()}, {"y": truth})
    _, other = nearly_nothing(64, few=2)
    other = other + 1e-8 * torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert standard.compare({"y": other.float()}).passed
    wrong = other.float()
    wrong[1] += 1e-6
    assert "next to zero" in str(standard.compare({"y": wrong}).verdict.failure)
    wrong = other.float()
    wrong[9] *= 1.01
    assert standard.compare({"y": wrong}).verdict.label == "WRONG(value)"
    assert standard.compare({"y": torch.zeros(64, 8)}).verdict.label == "WRONG(value)"


def test_many_rows_that_are_next_to_nothing_say_that_the_baseline_is_wrong():
    truth, summed = nearly_nothing(64, few=6)
    found = compare.Standard({"y": summed.float()}, {"y": truth}).compare({"y": summed.float()})
    assert found.verdict.label == "INVALID_BASELINE"
