"""measure/stats.py: medians of paired ratios, their intervals, the stop rule, noise and throttled samples."""

import numpy as np
import pytest

from fastkernels.measure import stats


def timings(n: int, ratio: float, scatter: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    drift = 100 * (1 + 0.2 * np.sin(np.arange(n) / 9))  # both sides see the same clocks
    baseline = drift * generator.lognormal(0, scatter, n)
    return baseline, drift / ratio * generator.lognormal(0, scatter, n)


def test_speedup_survives_shared_drift():
    baseline, candidate = timings(200, ratio=1.2, scatter=0.01)
    found = stats.paired_ratio(baseline, candidate)
    assert found.low < 1.2 < found.high
    assert found.high - found.low < 0.01
    assert found.n == 200


@pytest.mark.whole
def test_interval_covers_the_truth_as_often_as_it_says():
    hits = 0
    for seed in range(100):
        found = stats.paired_ratio(*timings(60, ratio=1.0, scatter=0.05, seed=seed))
        hits += found.low <= 1.0 <= found.high
    assert 88 <= hits <= 100


def test_same_samples_give_the_same_interval():
    samples = timings(50, 1.1, 0.02)
    assert stats.paired_ratio(*samples) == stats.paired_ratio(*samples)


def test_rounds_that_differ_widen_the_interval():
    generator = np.random.default_rng(3)
    rounds = np.repeat(np.arange(10), 20)
    ratios = (1 + 0.05 * generator.standard_normal(10))[rounds] + 0.001 * generator.standard_normal(200)
    alone = stats.median_interval(ratios)
    clustered = stats.median_interval(ratios, rounds.tolist())
    assert clustered.high - clustered.low > 2 * (alone.high - alone.low)
    assert clustered.median == alone.median


def test_rounds_of_unequal_length_are_accepted():
    ratios = np.linspace(0.9, 1.1, 31)
    rounds = [i // 5 for i in range(31)]
    found = stats.median_interval(ratios, rounds)
    assert found.median == pytest.approx(1.0)
    assert 0.9 < found.low < 1.0 < found.high < 1.1
    with pytest.raises(ValueError, match="7 round numbers for 31"):
        stats.median_interval(ratios, [0, 1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_durations_must_be_positive_and_finite(bad):
    with pytest.raises(ValueError, match="candidate duration"):
        stats.paired_ratios([1.0, 1.0], [1.0, bad])
    with pytest.raises(ValueError, match="baseline duration"):
        stats.paired_ratios([bad, 1.0], [1.0, 1.0])


def test_unpaired_samples_are_refused():
    with pytest.raises(ValueError, match="2 baseline samples cannot be paired with 3"):
        stats.paired_ratios([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="non-empty"):
        stats.summarize([])


def test_summary():
    assert stats.summarize(range(1, 102)) == stats.Summary(median=51, p20=21, p80=81, n=101)


def interval(half_width: float) -> stats.Interval:
    return stats.Interval(1.0, 1 - half_width, 1 + half_width, 1000)


@pytest.mark.parametrize(
    ("found", "samples", "elapsed", "expected"),
    [
        (interval(0.004), 30, 1, "converged"),
        (interval(0.004), 29, 1, "continue"),  # too few samples for any claim
        (interval(0.006), 500, 1, "continue"),
        (interval(0.006), 500, 10, "budget"),
        (interval(0.06), 500, 10, "unstable"),
        (interval(0.004), 29, 10, "unstable"),
        (None, 1, 1, "continue"),
        (None, 1, 10, "unstable"),
    ],
)
def test_stop_rule(found, samples, elapsed, expected):
    assert stats.stop(found, samples, elapsed, budget_s=10) == expected


def test_half_width_is_the_farther_end():
    assert stats.Interval(2.0, 1.9, 2.02, 30).half_width == pytest.approx(0.05)


def test_noise_is_the_farthest_reach_of_any_pair():
    pairs = [stats.Interval(1.0, 0.996, 1.004, 50), stats.Interval(0.991, 0.988, 0.994, 50)]
    assert stats.noise_pct(pairs) == pytest.approx(1.2)
    with pytest.raises(ValueError, match="at least one pair"):
        stats.noise_pct([])


def test_throttled_pairs_are_dropped_on_either_side():
    baseline = [1980, 1980, 1500, 1980, 1975]
    candidate = [1980, 1410, 1980, 1980, 1980]
    assert stats.keep_unthrottled(baseline, candidate).tolist() == [True, False, False, True, True]


def test_unknown_clocks_keep_every_pair():
    assert stats.keep_unthrottled([None, None], [None, None]).all()
    assert stats.keep_unthrottled([1980, None], [1980, 1980]).all()


def test_weighted_geomean():
    assert stats.geomean([1, 4]) == pytest.approx(2)
    assert stats.geomean([1, 4], [3, 1]) == pytest.approx(4**0.25)
    with pytest.raises(ValueError, match="positive"):
        stats.geomean([1, 0])


# ---------------------------------------------------------------- few rounds


def drawn(kind: str, rounds: int, generator: np.random.Generator) -> np.ndarray:
    """Ratios of identical sides: their median is 1."""
    logs = {
        "normal": generator.normal(size=rounds),
        "heavy tails": generator.standard_t(2, size=rounds),
        "bursts": generator.normal(size=rounds) * np.where(generator.random(rounds) < 0.2, 10, 1),
    }[kind]
    return np.exp(0.02 * logs)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "bursts"])
@pytest.mark.parametrize("rounds", [6, 7, 9, 12, 28])
def test_intervals_of_few_rounds_hold_at_their_level(rounds: int, kind: str) -> None:
    """0.935 is 0.95 less two standard errors of a share of 1,000, rounded."""
    generator = np.random.default_rng(rounds)
    intervals = [stats.few_interval(drawn(kind, rounds, generator)) for _ in range(1000)]
    assert sum(one.low <= 1 <= one.high for one in intervals) / 1000 >= 0.935


@pytest.mark.whole
def test_rounds_that_go_on_until_the_interval_is_narrow_keep_its_level() -> None:
    """As runner/models/model_trial.py stops: at six rounds or more, once the ratio is known to 1 %."""
    generator, held = np.random.default_rng(1), 0
    for _ in range(300):
        ratios = list(np.exp(0.01 * generator.standard_t(3, size=6)))
        while (found := stats.few_interval(ratios)).half_width > 0.01 and len(ratios) < 16:
            ratios.append(float(np.exp(0.01 * generator.standard_t(3))))
        held += found.low <= 1 <= found.high
    assert held / 300 >= 0.92


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_fewer_rounds_than_bound_a_median_are_taken_as_normal(rounds: int) -> None:
    generator = np.random.default_rng(rounds)
    intervals = [stats.few_interval(drawn("normal", rounds, generator)) for _ in range(1000)]
    assert 0.93 <= sum(one.low <= 1 <= one.high for one in intervals) / 1000 <= 0.99


def test_two_rounds_that_differ_much_tell_next_to_nothing() -> None:
    found = stats.few_interval([1.35, 0.97])
    assert 0 < found.low < 0.5 < 2 < found.high < np.inf


def test_one_round_is_all_that_is_known() -> None:
    found = stats.few_interval([1.25])
    assert (found.low, found.median, found.high, found.n) == (1.25, 1.25, 1.25, 1)


@pytest.mark.parametrize(
    ("ratio", "half_width", "unstable"),
    [
        (1.0, 0.04, False),
        (1.0, 0.06, True),
        (1.2, 0.06, True),
        (2.0, 0.1, False),
        (0.5, 0.1, False),
        (2.0, 0.2, True),
    ],
)
def test_a_wide_interval_far_from_one_is_a_number(ratio: float, half_width: float, unstable: bool) -> None:
    interval = stats.Interval(ratio, ratio * (1 - half_width), ratio * (1 + half_width), 40)
    assert (stats.stop(interval, 40, elapsed_s=2, budget_s=1) == "unstable") is unstable
