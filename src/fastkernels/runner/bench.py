"""What goes into a trial and what comes out of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from fastkernels.judge.compare import Comparison
from fastkernels.judge.verdict import Verdict
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.stats import Interval
from fastkernels.records import Contract


@dataclass
class Outcome:
    """What a trial found. `worst`: the comparison of the largest error ratio; `checked`: iterations."""

    verdict: Verdict
    contract: Contract
    died: bool = False  # the candidate's process ended or was ended
    worst: Comparison | None = None
    checked: int = 0
    capture: Literal["yes", "no", "n/a"] = "n/a"
    baseline_kernels: dict[str, str] = field(default_factory=dict)
    roofline_pct: float | None = None
    clock_mhz: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """The baseline in all three processes, before the candidate's has imported anything of the candidate.

    Identical processes differ by up to 7 % on a kernel of 5 us, steadily while they live (measured on an
    H200). What they differ by here is taken off what they differ by in the trial.
    """

    contract: Contract  # of the measurement: a bias in one contract says nothing about another
    speedup: Interval  # baseline processes / candidate's process
    identical: Interval  # baseline A / baseline A'


@dataclass
class Bench:
    """What all trials of a run share."""

    device: str
    contract: Contract
    budget_s: float
    threads: int
    rng: random.Random
    baseline: Overlay

    def draws(self, share: float) -> bool:
        return self.rng.random() < share
