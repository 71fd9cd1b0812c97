"""score/calibrate.py: discrepancies, noise floor, ruin point, credit, ratios and their clips."""

import math

import pytest

from fastkernels.records import Failure, Swap
from fastkernels.score import calibrate

from .conftest import latency, result, throughput


@pytest.mark.parametrize(("mean_d", "expected"), [(0.00540995, 0.9911624), (0.03986940, 0.9221054)])
def test_the_public_leaderboards_credit(mean_d, expected):
    """f = 0.5, g = 0.001, all samples above g: the map is linear, so the mean decides."""
    spread = [mean_d * 0.5, mean_d * 1.5, mean_d]
    assert calibrate.correctness(spread, f=0.5, g=0.001) == pytest.approx(expected, abs=5e-8)


def test_credit_is_clipped_at_both_ends():
    assert calibrate.correctness([0.0, 0.0005], f=0.5, g=0.001) == 1
    assert calibrate.correctness([0.5, 1.0], f=0.5, g=0.001) == 0
    assert calibrate.correctness([0.0, 1.0], f=0.5, g=0.001) == 0.5


def test_filler_in_timed_answers_costs_more_than_it_wins():
    """A share of the tokens of every answer saves as much of the time, and no sample shows it."""

    def worth(share: float) -> float:
        cut = [made(1 / (1 - share)) for made in (throughput, latency)]
        workloads = [workload.model_copy(update={"audited_d": (share, share)}) for workload in cut]
        found = result(workloads=tuple(workloads), d=(0.0,) * 50)
        return found.correctness * (found.speedup or 0.0)

    assert worth(0.0) == 1
    assert all(worth(percent / 100) < 1 for percent in range(1, 100))
    cut = latency(1.3).model_copy(update={"audited_d": (0.25,)})
    one_of_five = result(workloads=(*(throughput(1.0, name=str(i)) for i in range(4)), cut), d=(0.0,) * 50)
    assert one_of_five.correctness == pytest.approx(0.5, abs=0.01), "nobody looked at the other four"


@pytest.mark.parametrize("missing", [math.nan, math.inf])
def test_missing_samples_are_unrelated(missing):
    assert calibrate.correctness([missing], f=0.5, g=0.001) == 0
    assert calibrate.correctness([], f=0.5, g=0.001) == 0


def test_noise_above_ruin_credits_nothing():
    assert calibrate.correctness([0.0], f=0.2, g=0.3) == 0
    found = result(noise_d=((0.4,), (0.4,), (0.4,)), ruin_d=(0.5,))
    assert not found.valid
    assert any("noise cannot be told from ruin" in note for note in found.notes)


def test_noise_floor_is_the_pooled_quantile_within_bounds():
    assert calibrate.noise_floor([[0.0], [0.0], [0.0]]) == 0.001
    assert calibrate.noise_floor([[0.9], [1.0], [1.0]]) == 0.5
    runs = [[i / 1000 for i in range(k, 101, 3)] for k in range(3)]
    assert calibrate.noise_floor(runs) == pytest.approx(0.095)
    with pytest.raises(ValueError, match="at least 3 noise runs, got 2"):
        calibrate.noise_floor([[0.0], [0.0]])


def test_ruin_point_is_half_the_median():
    assert calibrate.ruin_point([1.0, 0.9, 0.2]) == 0.45
    with pytest.raises(ValueError, match="unrelated"):
        calibrate.ruin_point([])


def test_token_discrepancy():
    assert calibrate.token_discrepancy([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert calibrate.token_discrepancy([1, 0, 3, 0], [1, 2, 3, 4]) == 0.5
    assert calibrate.token_discrepancy([1], [1, 2, 3, 4]) == 0.75, "missing positions disagree"
    assert calibrate.token_discrepancy([1, 2, 9, 9], [1, 2]) == 0.5, "so do extra ones"
    with pytest.raises(ValueError, match="without positions"):
        calibrate.token_discrepancy([], [])


def logs(**p: float) -> list:
    return [[{token: math.log(x) for token, x in p.items()}]]


def test_kl_is_exact_on_full_distributions_and_a_lower_bound_on_tops():
    p, q = {"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 0.4, "b": 0.4, "c": 0.2}
    exact = sum(p[t] * math.log(p[t] / q[t]) for t in p)
    assert calibrate.kl_bound(logs(**p), logs(**q)) == pytest.approx(exact)
    top = calibrate.kl_bound(logs(a=0.5), logs(a=0.4))
    assert 0 < top < exact
    assert calibrate.kl_bound(logs(**p), logs(**p)) == 0
    assert calibrate.kl_bound(logs(a=0.9), logs(b=0.9)) == 0, "nothing in common says nothing"
    assert calibrate.kl_bound([], []) == 0


@pytest.mark.parametrize("log_probability", [math.nan, math.inf, 1e308, -math.inf])
def test_kl_of_what_are_no_log_probabilities(log_probability):
    p = [[{"a": math.log(0.5)}]]
    assert 0 < calibrate.kl_bound(p, [[{"a": log_probability}]]) < math.inf


def test_ratios_are_taken_from_the_rounds():
    claimed = throughput(1.2).model_copy(update={"throughput_ratio": 5.0})
    assert calibrate.workload_ratio(claimed) == pytest.approx(1.2)
    assert calibrate.workload_ratio(latency(1.5)) == pytest.approx(1.5)
    bare = throughput(1.2).model_copy(update={"baseline": (), "candidate": ()})
    assert calibrate.workload_ratio(bare) == 1.2


@pytest.mark.parametrize(("ratio", "kept"), [(50.0, 10.0), (0.01, 0.1), (10.0, 10.0)])
def test_ratios_are_clipped_and_the_clip_is_told(ratio, kept):
    found = result(workloads=(latency(ratio),))
    assert found.workloads[0].latency_ratio == pytest.approx(kept)
    assert found.workloads[0].clipped == (abs(ratio - kept) > 1e-9)
    assert any("clipped" in note for note in found.notes) == found.workloads[0].clipped


def test_speedup_is_the_geometric_middle_of_throughput_and_latency():
    found = result(workloads=(throughput(2.0), throughput(0.5, name="b"), latency(4.0)))
    assert found.throughput_speedup == pytest.approx(1.0)
    assert found.latency_speedup == pytest.approx(4.0)
    assert found.speedup == pytest.approx(2.0)
    assert calibrate.combine(2.0, 8.0, lambda_=1) == 2.0
    assert calibrate.combine(2.0, 8.0, lambda_=0) == 8.0
    assert calibrate.combine(None, 8.0, lambda_=1) == 8.0
    assert calibrate.combine(None, None) is None


def test_only_valid_models_carry_a_speedup():
    assert result().valid
    assert result().speedup == pytest.approx(1.1)
    wrong = result(d=(0.3, 0.3))
    assert not wrong.valid
    assert wrong.speedup is None
    assert wrong.throughput_speedup == pytest.approx(1.21), "what was measured stays on record"


@pytest.mark.parametrize("swap", [Swap(sites=0, calls=0), Swap(sites=2, calls=0)])
def test_a_swap_that_reached_nothing_is_not_valid(swap):
    found = result(swap=swap)
    assert found.correctness > 0.9
    assert not found.valid
    assert any("no coverage" in note for note in found.notes)
    assert result(swap=swap, self_test=True).valid


def test_a_failed_model_has_nothing():
    found = calibrate.failed_model(
        model="llama",
        category="LLM",
        size="tiny",
        config="tiny",
        failure=Failure(message="CRASHED: exit 139"),
    )
    assert (found.correctness, found.valid, found.speedup) == (0, False, None)
