"""MacroEval: one number over families of models, so that no architecture dominates.

    S_f = geomean of s_i over valid i in f       C_f = mean of C_i over all i in f       Cov_f = valid / all
    S = geomean_f S_f        C = mean_f C_f        Cov = mean_f Cov_f                     score = S C Cov

A family is a category. One without a valid model enters S at 0.5 (`half`), or stays out of S (`drop`, the
rule of the public leaderboard of 2026-09-26). The score is *as is*: all candidates together, nothing dropped.

For the interval each workload's median ratio is drawn from where its rounds leave it (measure/stats.py:
median_draws), and each model's samples are drawn anew; correctness, validity and score follow. Noise floors
and ruin points stay as measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fastkernels.measure.stats import CONFIDENCE, SEED, geomean, median_draws
from fastkernels.records import EvalReport, MacroEval, ModelResult
from fastkernels.score import calibrate

EmptyFamily = Literal["half", "drop"]
EMPTY_FAMILY_SPEEDUP = 0.5
RESAMPLES = 1000
_OBSERVED = ("model", "category", "size", "config", "workloads", "d", "noise_d", "ruin_d", "kl", "swap")


@dataclass(frozen=True, slots=True)
class Scored:
    """What the aggregation needs to know of one model. `speedup` counts only where `valid`."""

    category: str
    correctness: float
    valid: bool
    speedup: float | None


@dataclass(frozen=True, slots=True)
class Aggregate:
    speedup: float
    correctness: float
    coverage: float
    by_category: dict[str, dict[str, float]]

    @property
    def score(self) -> float:
        return self.speedup * self.correctness * self.coverage


def aggregate(models: Sequence[Scored], empty_family: EmptyFamily = "half") -> Aggregate:
    """The three factors over families. ValueError without a model."""
    if not models:
        raise ValueError("MacroEval needs at least one model")
    by_category: dict[str, dict[str, float]] = {}
    for category in dict.fromkeys(model.category for model in models):
        family = [model for model in models if model.category == category]
        fast = [model.speedup for model in family if model.valid and model.speedup is not None]
        facts = by_category[category] = {
            "correctness": sum(model.correctness for model in family) / len(family),
            "coverage": len(fast) / len(family),
            "models": float(len(family)),
        }
        if fast:
            facts["speedup"] = geomean(fast)
        elif empty_family == "half":
            facts["speedup"] = EMPTY_FAMILY_SPEEDUP
    families = by_category.values()
    speeds = [family["speedup"] for family in families if "speedup" in family]
    return Aggregate(
        speedup=geomean(speeds)
        if speeds
        else 0.0,  # all families dropped: nothing was valid, the score is 0 anyway
        correctness=sum(family["correctness"] for family in families) / len(by_category),
        coverage=sum(family["coverage"] for family in families) / len(by_category),
        by_category=by_category,
    )


def macroeval(
    models: Sequence[ModelResult],
    lambda_: float = calibrate.LAMBDA,
    empty_family: EmptyFamily = "half",
    resamples: int = RESAMPLES,
    self_test: bool = False,
) -> MacroEval:
    """MacroEval of finished models, with lambda = 1 and 0 beside it. A self-test has no candidate to be
    reached."""
    main, throughput, latency = (
        aggregate([_scored(model, weight) for model in models], empty_family)
        for weight in (lambda_, 1.0, 0.0)
    )
    return MacroEval(
        score=main.score,
        speedup=main.speedup,
        correctness=main.correctness,
        coverage=main.coverage,
        speedup_throughput_only=throughput.speedup,
        speedup_latency_only=latency.speedup,
        score_ci=_interval(models, lambda_, empty_family, resamples, self_test) if resamples else None,
        by_category=main.by_category,
    )


def rescore(
    report: EvalReport,
    f: float | None = None,
    lambda_: float = calibrate.LAMBDA,
    empty_family: EmptyFamily = "half",
) -> EvalReport:
    """The same report with everything computed again from its raw samples and rounds.

    `f` replaces every measured ruin point. Failed models stay failed. A report without candidates is a
    self-test. UsageError for samples and rounds that cannot be scored.
    """
    models = tuple(_again(model, not report.candidates, f, lambda_) for model in report.models)
    return with_score(report.model_copy(update={"models": models}), lambda_, empty_family)


def with_score(
    report: EvalReport, lambda_: float = calibrate.LAMBDA, empty_family: EmptyFamily = "half"
) -> EvalReport:
    """The report with the MacroEval of its models, as they are. There is none without a model, and none where
    one could not be judged: a candidate that kept the baseline of one from running must not win by its
    absence."""
    is_whole = report.models and not report.unevaluated
    self_test = not report.candidates
    found = macroeval(report.models, lambda_, empty_family, self_test=self_test) if is_whole else None
    return report.model_copy(update={"macroeval": found})


def _again(model: ModelResult, self_test: bool, f: float | None, lambda_: float) -> ModelResult:
    if model.failure is not None:
        return model
    with calibrate.recorded(model):
        return calibrate.model_result(
            **{name: getattr(model, name) for name in _OBSERVED},
            self_test=self_test,
            notes=calibrate.observed_notes(model, self_test),
            f=f,
            lambda_=lambda_,
        )


def _scored(model: ModelResult, lambda_: float) -> Scored:
    speedup = calibrate.combine(model.throughput_speedup, model.latency_speedup, lambda_)
    return Scored(model.category, model.correctness, model.valid, speedup)


# ---------------------------------------------------------------- the interval


def _interval(
    models: Sequence[ModelResult], lambda_: float, empty_family: EmptyFamily, resamples: int, self_test: bool
) -> tuple[float, float]:
    generator = np.random.default_rng(SEED)
    draws = [_Draws(model, generator, resamples, lambda_, self_test) for model in models]
    scores = [aggregate([draw.scored(i) for draw in draws], empty_family).score for i in range(resamples)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(scores, (tail, 1 - tail))
    return float(low), float(high)


class _Draws:
    """All resamples of one model: correctness and speed-up of each."""

    def __init__(
        self,
        model: ModelResult,
        generator: np.random.Generator,
        resamples: int,
        lambda_: float,
        self_test: bool,
    ) -> None:
        self._category = model.category
        guessed = calibrate.wrong_workloads(model.workloads, model.ruin_point, model.noise_floor)
        reached = self_test or calibrate.reached(model.swap)
        self._may_be_valid = model.failure is None and reached and not guessed
        credit_J = [calibrate.correctness([d], model.ruin_point, model.noise_floor) for d in model.d] or [0.0]
        timed = calibrate.timed_correctness(model.workloads, model.ruin_point, model.noise_floor)
        self._correctness = _resampled(np.array(credit_J), generator, resamples).mean(axis=1).clip(max=timed)
        logs: dict[str, list[np.ndarray]] = {"throughput": [], "latency": []}
        for workload in model.workloads:
            rounds = calibrate.round_ratios(workload) if workload.baseline else np.array([workload.ratio])
            medians = median_draws(rounds, resamples, generator)
            logs[workload.kind].append(np.log(np.clip(medians, *calibrate.RATIO_BOUNDS)))
        throughput, latency = (np.exp(np.mean(logs[kind], axis=0)) if logs[kind] else None for kind in logs)
        self._speedup = calibrate.combine(throughput, latency, lambda_)

    def scored(self, i: int) -> Scored:
        correctness = float(self._correctness[i])
        speedup = None if self._speedup is None else float(self._speedup[i])
        valid = self._may_be_valid and correctness >= calibrate.VALID_FROM and speedup is not None
        return Scored(self._category, correctness, valid, speedup)


def _resampled(values: np.ndarray, generator: np.random.Generator, resamples: int) -> np.ndarray:
    return values[generator.integers(0, len(values), size=(resamples, len(values)))]
