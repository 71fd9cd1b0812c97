"""Statistics of paired timings: pure functions on arrays of microseconds.

    ratio of pair i     r_i = baseline_i / candidate_i            > 1: the candidate is faster
    speed-up            median_i r_i, with a 95 % bootstrap interval
    A/A noise           how far the same interval of baseline / baseline reaches from 1

A pair is one call of each side, close in time, on the same inputs. Calls of one round share clocks and heat,
so they are not independent: where the rounds are known, whole rounds are resampled (a cluster bootstrap),
which widens the interval to what a repetition of the run would show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastkernels.records import is_unstable

MIN_SAMPLES = 30  # below this a bootstrap interval of a median is not to be trusted
TARGET_HALF_WIDTH = 0.005  # stop sampling once the interval lies within 0.5 % of the median
MIN_ROUNDS = 5  # fewer clusters than this cannot be resampled: fall back to single pairs
RESAMPLES = 1000
MIN_FOR_ORDER = 6  # of values whose least and greatest bound the median with 95 %: 1 - 2 / 2^6 = 0.97
_MOST_LOG = 50.0  # beyond it nothing is known, and a float would overflow
DRAWS = 20_000  # the ends move by a thousandth of the spread from seed to seed
CONFIDENCE = 0.95
THROTTLE_DROP = 0.05  # a clock 5 % below the run's median belongs to another state of the chip
SEED = 20260926  # fixed, so that `fk score` and a second reading of a report agree

Floats = NDArray[np.float64]
Stop = Literal["continue", "converged", "budget", "unstable"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its bootstrap interval; `n` observations stand behind it."""

    median: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """The larger distance from the median to an end, relative to the median."""
        return max(self.high - self.median, self.median - self.low) / abs(self.median)


@dataclass(frozen=True, slots=True)
class Summary:
    """Quantiles of one side's samples, in the unit of the samples."""

    median: float
    p20: float
    p80: float
    n: int


def summarize(samples: ArrayLike) -> Summary:
    """Median, 20 % and 80 % quantile. ValueError without samples."""
    values = _floats(samples)
    p20, median, p80 = np.quantile(values, (0.2, 0.5, 0.8))
    return Summary(float(median), float(p20), float(p80), len(values))


def paired_ratios(baseline: ArrayLike, candidate: ArrayLike) -> Floats:
    """baseline_i / candidate_i. ValueError for unequal lengths and for durations that are not positive and
    finite."""
    above, below = _floats(baseline), _floats(candidate)
    if above.shape != below.shape:
        raise ValueError(
            f"{len(above)} baseline samples cannot be paired with {len(below)} candidate samples"
        )
    for side, values in (("baseline", above), ("candidate", below)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ValueError(f"A {side} duration is not a positive finite number")
    return above / below


def median_interval(
    values: ArrayLike,
    rounds: Sequence[int] | None = None,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = SEED,
) -> Interval:
    """Median of `values` with its percentile-bootstrap interval.

    `rounds[i]` is the round in which value i was taken; from MIN_ROUNDS rounds on, rounds are resampled as
    wholes.
    """
    data = _floats(values)
    clusters = _clusters(data, rounds)
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, len(clusters), size=(resamples, len(clusters)))
    median = np.nanmedian if np.isnan(clusters).any() else np.median
    return _around(data, median(clusters[chosen].reshape(resamples, -1), axis=1), confidence)


def _around(data: Floats, medians: Floats, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    middle = float(np.median(data))
    return Interval(middle, min(float(low), middle), max(float(high), middle), len(data))


def paired_ratio(baseline: ArrayLike, candidate: ArrayLike, rounds: Sequence[int] | None = None) -> Interval:
    """Median of the paired ratios baseline / candidate with its interval."""
    return median_interval(paired_ratios(baseline, candidate), rounds)


def median_draws(values: ArrayLike, count: int, generator: np.random.Generator) -> Floats:
    """`count` draws of where the median of few independent values may lie: their quantiles are its interval.

    How many of n values lie below the median is binomial (n, 1/2), whatever their distribution. So a draw
    takes a number of values below, and a place between the two neighbours of that gap. A bootstrap of six
    values, or of more where rounds go on until the interval is narrow, is too narrow: in simulations its 95 %
    interval missed the median in 7 to 11 % of the runs, this one in 3 to 5 %. Fewer than six values do not
    bound the median with 95 %: there they are taken as normal (Student's t of their logarithms).
    """
    x = np.sort(_floats(values))
    n = len(x)
    if n == 1:
        return np.full(count, x[0])
    if n < MIN_FOR_ORDER:
        logs = np.log(x)
        drawn = logs.mean() + logs.std(ddof=1) / np.sqrt(n) * generator.standard_t(n - 1, count)
        return np.exp(np.clip(drawn, -_MOST_LOG, _MOST_LOG))
    edges = np.concatenate((x[:1], x, x[-1:]))
    below = generator.binomial(n, 0.5, count)
    return edges[below] + generator.random(count) * (edges[below + 1] - edges[below])


def few_interval(values: ArrayLike) -> Interval:
    """The median of few independent values, and its interval by `median_draws`."""
    data = _floats(values)
    return _around(data, median_draws(data, DRAWS, np.random.default_rng(SEED)), CONFIDENCE)


def noise_pct(pairs: Iterable[Interval]) -> float:
    """The A/A bound in percent: the farthest reach from 1 of baseline / baseline intervals, one for each
    process pair.

    Two identical processes differ by a systematic part (addresses, order: about 1 % on one H200) and by
    scatter; an interval's far end holds both. Several pairs give the worst. ValueError without a pair.
    """
    reaches = [max(abs(pair.low - 1), abs(pair.high - 1)) for pair in pairs]
    if not reaches:
        raise ValueError("A/A noise needs at least one pair of baseline processes")
    return 100 * max(reaches)


def stop(interval: Interval | None, samples: int, elapsed_s: float, budget_s: float) -> Stop:
    """Whether to go on sampling, after `samples` of each side.

    converged: 30 samples and the interval within 0.5 % of the median · budget: time is up, the interval is
    usable (the report prints it) · unstable: time is up and the interval is wider than 5 % (or, far from 1,
    than a fifth of the difference), or there are fewer than 30 samples.
    """
    known = interval if interval is not None and samples >= MIN_SAMPLES else None
    if known is not None and known.half_width <= TARGET_HALF_WIDTH:
        return "converged"
    if elapsed_s < budget_s:
        return "continue"
    return "unstable" if known is None or is_unstable(known.median, known.half_width) else "budget"


def keep_unthrottled(*clocks_mhz: Sequence[int | None]) -> NDArray[np.bool_]:
    """True for pairs in which every side ran at the run's usual clock.

    One sequence for each side, one entry for each pair; None = unknown (a CPU), which keeps the pair. The
    usual clock is the median over all sides, so that a side that always runs throttled is dropped and not
    taken for normal.
    """
    table = np.array(
        [[np.nan if c is None else float(c) for c in side] for side in clocks_mhz], dtype=np.float64
    )
    if np.isnan(table).all():
        return np.ones(table.shape[1], dtype=np.bool_)
    usual = np.nanmedian(table)
    slow = table < usual * (1 - THROTTLE_DROP)
    return np.logical_not(slow.any(axis=0))


def geomean(values: ArrayLike, weights: ArrayLike | None = None) -> float:
    """exp of the (weighted) mean logarithm. ValueError for no values or values <= 0."""
    data = _floats(values)
    if (data <= 0).any():
        raise ValueError("A geometric mean needs positive values")
    return float(np.exp(np.average(np.log(data), weights=None if weights is None else _floats(weights))))


def _clusters(data: Floats, rounds: Sequence[int] | None) -> Floats:
    """[clusters, longest cluster], short ones padded with NaN, which the median leaves out."""
    if rounds is None or len(set(rounds)) < MIN_ROUNDS:
        return data[:, None]
    if len(rounds) != len(data):
        raise ValueError(f"{len(rounds)} round numbers for {len(data)} values")
    labels = np.asarray(rounds)
    groups = [data[labels == label] for label in np.unique(labels)]
    padded = np.full((len(groups), max(map(len, groups))), np.nan)
    for row, group in zip(padded, groups):
        row[: len(group)] = group
    return padded


def _floats(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"Need a non-empty list of numbers, got shape {array.shape}")
    return array
