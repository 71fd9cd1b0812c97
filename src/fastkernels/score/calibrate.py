"""One model's part of MacroEval: from raw discrepancies and rounds to correctness, validity and speed-up.

    d_j in [0, 1]   discrepancy of sample j from the baseline's output: 0 same, 1 unrelated, missing or NaN
    g               noise floor: 0.95 quantile of d over three or more noise runs of the baseline, within
                    [0.001, 0.5]
    f               ruin point: half the median d of unrelated outputs
    c_j             clip((f - d_j) / (f - g), 0, 1)
    c_w             mean c of the answers of a timed round of workload w
    C               min(mean_j c_j, mean_w c_w): answers that are cut short cost more than the time they save
    valid           ran, C >= 0.9, a candidate was reached, and c_w >= 0.5 in every workload: one of them is a
                    small part of C
    T, L            geomean of throughput ratios, of latency ratios
    s               T^lambda L^(1 - lambda)

Pure functions on records; neither torch nor a clock.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastkernels.errors import UsageError
from fastkernels.measure.stats import geomean, paired_ratios
from fastkernels.records import Failure, ModelResult, Size, Swap, WorkloadResult

LAMBDA = 0.5
VALID_FROM = 0.9
# Of one workload's answers alone. There may be a single one: half-way between as right as noise and ruined.
WORKLOAD_VALID_FROM = 0.5
NOISE_QUANTILE = 0.95
NOISE_BOUNDS = (0.001, 0.5)
MIN_NOISE_RUNS = 3
ASSUMED_RUIN = 0.5  # of a model that failed before its ruin point was measured; nothing depends on it
RATIO_BOUNDS = (0.1, 10.0)


# ---------------------------------------------------------------- discrepancies of tokens


def token_discrepancy(argmax: Sequence[int], forced: Sequence[int]) -> float:
    """1 - share of positions at which the argmax is the baseline's token; positions that are missing
    disagree."""
    if not forced:
        raise ValueError("A sample without positions has no discrepancy")
    same = sum(ours == theirs for ours, theirs in zip(argmax, forced))
    return 1 - same / max(len(forced), len(argmax))


def kl_bound(
    baseline: Sequence[Sequence[Mapping[str, float]]], candidate: Sequence[Sequence[Mapping[str, float]]]
) -> float:
    """Mean over positions of a lower bound of KL(baseline || candidate), from the largest log-probabilities
    of both.

    Tokens that both list are kept apart, all others are one event: merging events never increases a
    divergence.
    """
    bounds = [
        _merged_kl(ours, theirs)
        for sample, other in zip(baseline, candidate, strict=True)
        for ours, theirs in zip(sample, other, strict=True)
    ]
    return sum(bounds) / len(bounds) if bounds else 0.0


def _merged_kl(p_log: Mapping[str, float], q_log: Mapping[str, float]) -> float:
    common = [token for token in p_log if token in q_log and p_log[token] > -math.inf]
    p, q = ([_share(log[token]) for token in common] for log in (p_log, q_log))
    pairs = [*zip(p, q), (max(0.0, 1 - sum(p)), max(0.0, 1 - sum(q)))]
    tiny = 1e-12  # mass that rounding takes from, or leaves to, the other tokens
    return max(0.0, sum(a * math.log(a / max(b, tiny)) for a, b in pairs if a > tiny))


def _share(log_probability: float) -> float:
    """Of what is no log-probability: nothing, or all."""
    return 0.0 if math.isnan(log_probability) else math.exp(min(log_probability, 0.0))


# ---------------------------------------------------------------- the scale


def noise_floor(noise_d: Sequence[Sequence[float]]) -> float:
    """g. ValueError with fewer than three runs: one or two say nothing about a quantile."""
    if len(noise_d) < MIN_NOISE_RUNS:
        raise ValueError(f"The noise floor needs at least {MIN_NOISE_RUNS} noise runs, got {len(noise_d)}")
    pooled = [_finite(d) for run in noise_d for d in run]
    return float(np.clip(np.quantile(pooled, NOISE_QUANTILE), *NOISE_BOUNDS))


def ruin_point(ruin_d: Sequence[float]) -> float:
    """f. ValueError without unrelated outputs."""
    if not len(ruin_d):
        raise ValueError("The ruin point needs unrelated outputs")
    return float(np.median([_finite(d) for d in ruin_d])) / 2


def correctness(d: Sequence[float], f: float, g: float) -> float:
    """C; 0 without samples, and where noise cannot be told from ruin (f <= g)."""
    if not len(d) or f <= g:
        return 0.0
    return float(np.mean(np.clip((f - np.array([_finite(x) for x in d])) / (f - g), 0, 1)))


def timed_correctness(workloads: Sequence[WorkloadResult], f: float, g: float) -> float:
    """mean_w c_w; 1 where no workload's answers were looked at."""
    found = [correctness(w.audited_d, f, g) for w in workloads if w.audited_d]
    return float(np.mean(found)) if found else 1.0


def _finite(d: float) -> float:
    return d if math.isfinite(d) else 1.0


# ---------------------------------------------------------------- speed


def workload_ratio(workload: WorkloadResult) -> float:
    """Median of the rounds' ratios, candidate better > 1, not clipped; the recorded one where no rounds are
    recorded."""
    if not workload.baseline:
        return workload.ratio
    return float(np.median(round_ratios(workload)))


def round_ratios(workload: WorkloadResult) -> np.ndarray:
    """The ratio of each round: rates candidate / baseline, seconds baseline / candidate."""
    if workload.kind == "throughput":
        return paired_ratios(workload.candidate, workload.baseline)
    return paired_ratios(workload.baseline, workload.candidate)


def clip_ratio(ratio: float) -> float:
    return float(np.clip(ratio, *RATIO_BOUNDS))


def speedups(ratios: Sequence[tuple[str, float]]) -> tuple[float | None, float | None]:
    """(T, L) of `(kind, ratio)` pairs; None for a kind that was not run."""
    by_kind = [[r for kind, r in ratios if kind == wanted] for wanted in ("throughput", "latency")]
    throughput, latency = (geomean(found) if found else None for found in by_kind)
    return throughput, latency


def combine(throughput: Any, latency: Any, lambda_: float = LAMBDA) -> Any:
    """s, of numbers or of arrays of draws. A kind that was not run does not count: the other one stands
    alone, whatever lambda says."""
    if throughput is None or latency is None:
        return latency if throughput is None else throughput
    return throughput**lambda_ * latency ** (1 - lambda_)


# ---------------------------------------------------------------- the record


def model_result(
    *,
    model: str,
    category: str,
    size: Size,
    config: str,
    workloads: Sequence[WorkloadResult],
    d: Sequence[float],
    noise_d: Sequence[Sequence[float]],
    ruin_d: Sequence[float],
    swap: Swap,
    kl: float | None = None,
    self_test: bool = False,
    notes: Sequence[str] = (),
    f: float | None = None,
    lambda_: float = LAMBDA,
) -> ModelResult:
    """A model that ran. `f` replaces the measured ruin point (0.5 reproduces the public leaderboard)."""
    g, ruin = noise_floor(noise_d), ruin_point(ruin_d) if f is None else f
    credit = min(correctness(d, ruin, g), timed_correctness(workloads, ruin, g))
    clipped = [_clip(workload) for workload in workloads]
    throughput, latency = speedups([(w.kind, w.ratio) for w in clipped])
    speedup = combine(throughput, latency, lambda_)
    counts = self_test or reached(swap)
    guessed = wrong_workloads(workloads, ruin, g)
    valid = credit >= VALID_FROM and counts and speedup is not None and not guessed
    return ModelResult(
        model=model,
        category=category,
        size=size,
        config=config,
        workloads=tuple(clipped),
        d=tuple(map(_finite, d)),
        noise_d=tuple(tuple(map(_finite, run)) for run in noise_d),
        ruin_d=tuple(map(_finite, ruin_d)),
        kl=kl,
        correctness=credit,
        noise_floor=g,
        ruin_point=ruin,
        valid=valid,
        speedup=speedup if valid else None,
        throughput_speedup=throughput,
        latency_speedup=latency,
        swap=swap,
        notes=tuple(dict.fromkeys((*notes, *_derived_notes(workloads, swap, ruin, g, self_test)))),
    )


@contextlib.contextmanager
def recorded(model: ModelResult) -> Iterator[None]:
    """UsageError where samples and rounds of a report's model cannot be scored."""
    try:
        yield
    except ValueError as error:
        told = f"its samples and rounds in the report are none that fk eval writes: {error}"
        raise UsageError(f"{model.model} ({model.config}): {told}") from error


def observed_notes(model: ModelResult, self_test: bool) -> list[str]:
    """The notes of a scored model less those that its score brought, which another score brings anew."""
    f, g = model.ruin_point, model.noise_floor
    derived = set(_derived_notes(model.workloads, model.swap, f, g, self_test))
    return [note for note in model.notes if note not in derived]


def _derived_notes(
    workloads: Sequence[WorkloadResult], swap: Swap, f: float, g: float, self_test: bool
) -> Iterator[str]:
    if f <= g:
        yield f"noise cannot be told from ruin: noise floor {g:.3g}, ruin point {f:.3g}"
    if not (self_test or reached(swap)):
        yield "no candidate was reached by this model: no coverage"
    for workload in workloads:
        if (ratio := clip_ratio(raw := workload_ratio(workload))) != raw:
            yield f"{workload.name}: ratio {raw:.4g} clipped to {ratio:g}"
    for name in wrong_workloads(workloads, f, g):
        yield f"{name}: its answers in a timed round are wrong, so nothing counts"


def wrong_workloads(workloads: Sequence[WorkloadResult], f: float, g: float) -> list[str]:
    """Those whose answers were wrong while the clock ran."""
    return [w.name for w in workloads if w.audited_d and correctness(w.audited_d, f, g) < WORKLOAD_VALID_FROM]


def failed_model(
    *, model: str, category: str, size: Size, config: str, failure: Failure, notes: Sequence[str] = ()
) -> ModelResult:
    """A model that the candidates broke: every output is missing, so C = 0."""
    return ModelResult(
        model=model,
        category=category,
        size=size,
        config=config,
        workloads=(),
        d=(),
        noise_d=(),
        ruin_d=(),
        correctness=0.0,
        noise_floor=NOISE_BOUNDS[0],
        ruin_point=ASSUMED_RUIN,
        valid=False,
        speedup=None,
        throughput_speedup=None,
        latency_speedup=None,
        swap=Swap(sites=0, calls=0),
        notes=tuple(notes),
        failure=failure,
    )


def reached(swap: Swap) -> bool:
    """Whether a candidate stood in the model and was called."""
    return swap.sites > 0 and swap.calls > 0


def _clip(workload: WorkloadResult) -> WorkloadResult:
    raw = workload_ratio(workload)
    ratio = clip_ratio(raw)
    key = "throughput_ratio" if workload.kind == "throughput" else "latency_ratio"
    return workload.model_copy(update={key: ratio, "clipped": ratio != raw})
