"""Tier 3: which models a request means, one trial for each, and the report with its MacroEval."""

from __future__ import annotations

import json
import random
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.loader.candidates import CandidateSet, discover
from fastkernels.measure.environment import environment, require_device
from fastkernels.records import EvalReport, ModelResult, Size
from fastkernels.registry.schema import Architecture, ModelConfig, Workload
from fastkernels.runner.model import ModelTrial
from fastkernels.runner.sides import Sides
from fastkernels.score.macroeval import macroeval

ROUNDS: dict[Size, int] = {"tiny": 6, "full": 2}
MAX_NUM_SEQS: dict[Size, int] = {"tiny": 32, "full": 1024}
# Two engines on one GPU; the rest is for contexts, graphs and the allocator's slack.
SHARED_GPU_FRACTION, WHOLE_GPU_FRACTION = 0.44, 0.88


@dataclass(frozen=True)
class EvalRequest:
    """The arguments of `fk eval` after all defaults."""

    models: tuple[str, ...]
    candidates: CandidateSet | None                 # None: self-test
    size: Size
    device: Literal["cpu", "cuda"]
    suite: str
    workloads: tuple[str, ...] = ()                 # empty: the suite's
    category: str | None = None
    rounds: int | None = None
    eager: bool = False
    seed: int | None = None

    @classmethod
    def parse(cls, models: Sequence[str], candidate_paths: Sequence[str], self_test: bool, size: Size | None,
              device: Literal["cpu", "cuda"] | None, suite: str, workloads: Sequence[str], category: str | None,
              rounds: int | None, eager: bool, seed: int | None) -> EvalRequest:
        """Fill in the defaults. UsageError, MachineError."""
        chosen = require_device(device)
        return cls(models=tuple(models), candidates=None if self_test else _one_set(candidate_paths),
                   size=size or ("full" if chosen == "cuda" else "tiny"), device=chosen, suite=suite,
                   workloads=tuple(workloads), category=category, rounds=rounds, eager=eager, seed=seed)

    def described(self) -> dict[str, Any]:
        """The request as a report stores it."""
        return {**asdict(self), "candidates": self.candidates.name if self.candidates else "self-test"}


@dataclass(frozen=True)
class Target:
    """A model to evaluate: what LLM() loads, and the facts of its architecture."""

    model: str
    architecture: Architecture
    config: str
    hf_config: dict[str, Any]


def run_eval(request: EvalRequest, tell: Callable[[str], None] = lambda _: None) -> EvalReport:
    """Evaluate every model of the request. Ctrl-C ends the workers and gives the report so far, `complete=False`.

    Raises NotFoundError, UsageError, MachineError, BaselineError.
    """
    targets = _targets(request)
    workloads = _workloads(request)
    seed = secrets.randbits(32) if request.seed is None else request.seed
    machine = environment(request.device)
    results: list[ModelResult] = []
    complete, isolation = True, machine.isolation
    with tempfile.TemporaryDirectory(prefix="fk-eval-") as caches:
        for target in targets:
            sides = _sides(request, target, seed, Path(caches))
            try:
                results.append(_trial(request, target, workloads, sides, seed, tell).run())
            except KeyboardInterrupt:
                complete = False
                break
            finally:
                isolation = sides.isolation or isolation
                sides.close()
    return EvalReport(
        environment=machine.model_copy(update={"isolation": isolation}), request={**request.described(), "seed": seed},
        candidates=request.candidates.describe() if request.candidates else (), models=tuple(results), complete=complete,
        macroeval=macroeval(results, self_test=request.candidates is None) if results else None)
