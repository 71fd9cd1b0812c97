"""Tier 3: workloads, models and report of `fk eval`."""

from __future__ import annotations

from typing import Any, Literal

from fastkernels.records.base import Document, Record, Size, is_unstable
from fastkernels.records.environment import Environment, NodeUse
from fastkernels.records.kernels import CandidateFiles, Failure


class WorkloadResult(Record):
    """Raw seconds of alternating rounds and their ratio (candidate better > 1)."""

    name: str
    kind: Literal["throughput", "latency"]
    unit: str  # `out tok/s`, `s`
    baseline: tuple[float, ...]  # in `unit`, one for each round
    candidate: tuple[float, ...]
    throughput_ratio: float | None = None  # exactly one of the two
    latency_ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None
    clipped: bool = False
    audited_d: tuple[float, ...] = ()  # discrepancies of answers of a timed round; also among the model's d

    @property
    def ratio(self) -> float:
        ratio = self.throughput_ratio if self.kind == "throughput" else self.latency_ratio
        assert ratio is not None
        return ratio

    @property
    def half_width(self) -> float:
        """The larger distance from the ratio to an end of its interval, relative to it; 0 without one."""
        low, high = self.ratio_ci or (self.ratio, self.ratio)
        return max(high - self.ratio, self.ratio - low) / self.ratio

    @property
    def unstable(self) -> bool:
        """Whether the interval is too wide for the ratio to mean anything: a speed-up rests on sand."""
        return is_unstable(self.ratio, self.half_width)


class Swap(Record):
    """Proof that the candidate ran inside the model."""

    sites: int  # modules of the model whose class comes from a candidate layer
    calls: int  # their calls in the eager proof pass
    by_task: dict[str, tuple[int, int]] = {}  # task -> (sites, calls)
    shadowed: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # candidate files that the model never imports
    predicted: float | None = None  # Amdahl: speed-up of a step from time saved at the sites
    measured: float | None = None  # speed-up of the same eager step
    transfer: float | None = None  # (measured - 1) / (predicted - 1)


class ModelResult(Record):
    model: str
    category: str
    size: Size
    config: str
    workloads: tuple[WorkloadResult, ...]
    d: tuple[float, ...]  # discrepancy of each sample, 0 same .. 1 unrelated
    noise_d: tuple[tuple[float, ...], ...]  # the same for each noise run of the baseline
    ruin_d: tuple[float, ...]  # discrepancy of unrelated outputs
    kl: float | None = None  # mean KL over positions, lower bound from the top logits
    correctness: float  # C_i
    noise_floor: float  # g_i
    ruin_point: float  # f_i
    valid: bool
    speedup: float | None  # s_i; None unless valid
    throughput_speedup: float | None  # T_i
    latency_speedup: float | None  # L_i
    swap: Swap
    notes: tuple[str, ...] = ()  # fallbacks counted, kernels passed over, clips
    failure: Failure | None = None
    absent: tuple[str, ...] = ()  # classes of production kernels that the baseline had none of; none in older


class UnfinishedModel(Record):
    """What was timed of a model that has no result, since it was interrupted or could not be judged to its
    end. Whether the answers were right is not known: a ratio here is no speed-up."""

    model: str
    config: str
    size: Size
    workloads: tuple[WorkloadResult, ...]  # of the one that was interrupted the whole rounds


class MacroEval(Record):
    score: float
    speedup: float
    correctness: float
    coverage: float
    speedup_throughput_only: float  # lambda = 1
    speedup_latency_only: float  # lambda = 0
    score_ci: tuple[float, float] | None = None
    by_category: dict[str, dict[str, float]]


class EvalReport(Document):
    kind: Literal["eval"] = "eval"
    environment: Environment
    request: dict[str, Any]
    candidates: tuple[str, ...]
    judged: tuple[CandidateFiles, ...] = ()  # none in older reports, and of a self-test
    models: tuple[ModelResult, ...]
    macroeval: MacroEval | None  # None: interrupted before any model finished, or one could not be judged
    complete: bool = True
    unevaluated: dict[str, str] = {}  # models that could not be judged, and why
    skipped: dict[str, str] = {}  # models that the request asks nothing of, and why: no part of the score
    unfinished: tuple[UnfinishedModel, ...] = ()
    nodes: tuple[NodeUse, ...] = ()  # only with `--cluster`
