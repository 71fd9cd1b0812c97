"""What goes into a trial and what comes out of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from fastkernels.judge.compare import Comparison
from fastkernels.judge.verdict import Verdict
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.sole import SoleUse
from fastkernels.records import Case, Contract, Integrity


class Evidence(NamedTuple):
    """One call that failed: its inputs, the oracle's outputs, and the candidate's, where there are any."""

    inputs: Mapping[str, Tensor]
    expected: Mapping[str, Tensor]
    actual: Mapping[str, Tensor]


@dataclass
class Outcome:
    """What a trial found. `worst`: the comparison of the largest error ratio; `checked`: iterations."""

    verdict: Verdict
    contract: Contract
    links: int = 1  # of the chain in which the call was captured
    died: bool = False  # the candidate's process ended or was ended
    compiling_s: float = 0.0  # imports and first calls of all sides, in which code is compiled
    worst: Comparison | None = None
    checked: int = 0
    capture: Literal["yes", "no", "n/a"] = "n/a"  # of the candidate alone
    baseline_capture: Literal["yes", "no", "n/a"] = "n/a"
    capture_detail: str | None = None  # why the candidate cannot be captured
    baseline_kernels: dict[str, str] = field(default_factory=dict)
    roofline_pct: float | None = None
    clock_mhz: int | None = None
    integrity: Integrity | None = None
    notes: tuple[str, ...] = ()
    evidence: Evidence | None = None  # of a failure, where the bench keeps it


@dataclass
class Bench:
    """What all trials of a run share. `sole_use`: of its GPUs."""

    device: str
    contract: Contract
    budget_s: float
    rng: random.Random
    baseline: Overlay
    sole_use: SoleUse | None = None
    tell: Callable[[str], None] = lambda _: None  # what a trial waits for
    keeps_evidence: bool = False

    def contract_of(self, case: Case) -> Contract:
        """A group of ranks has a contract of its own."""
        return "collective" if case.ranks > 1 else self.contract

    def draws(self, share: float) -> bool:
        return self.rng.random() < share
