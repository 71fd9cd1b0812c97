"""The outcome of one trial. Only legal states exist: a speed-up can be written down with PASSED alone.

Verdict.passed(speedup=..., ...)     Verdict.wrong("value", failure)     Verdict.failed("TIMEOUT", failure)
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import model_validator

from fastkernels.records import LEAST_NOISE, Contract, Failure, Place, Record, least_noise

Status = Literal[
    "PASSED",
    "WRONG",
    "IMPORT_ERROR",
    "SIGNATURE_MISMATCH",
    "COMPILE_ERROR",
    "CRASHED",
    "TIMEOUT",
    "OOM",
    "TAMPERED",
    "IMPLAUSIBLE",
    "UNSTABLE",
    "UNSUPPORTED",
    "INVALID_BASELINE",
]
Wrong = Literal[
    "shape",
    "dtype",
    "stride",
    "value",
    "nonfinite",
    "alias",
    "mutated_input",
    "unstable_result",
    "rank_divergent",
]

# Whose fault a verdict is decides the exit code (0 all passed, 1 a candidate failed, 3 the machine's results
# do not hold).
MACHINE_FAULTS = frozenset({"UNSTABLE", "INVALID_BASELINE"})


def is_failure(verdict: str) -> bool:
    """Whether a row with this verdict is the candidate's fault. What it cannot serve is a fact about it."""
    return verdict not in MACHINE_FAULTS | {"PASSED", "UNSUPPORTED"}


# A and A' are two processes with the same code, C is a third. Where processes differ for as long as they
# live, it lies farther from their mean than they do from one another in 45 of 100 cases (normal effects).
PROCESSES_APART = 2


def too_noisy(contract: Contract, noise_pct: float) -> bool:
    """Whether two processes with the same code differ by so much that a ratio beside them says nothing.

    In `eager` only: beyond its bound they differ for their whole life, and how the next pair does cannot be
    told from this one. Beside 8.8 and 12.6 % identical code read 1.212 and 1.266.
    """
    return contract == "eager" and noise_pct > 100 * LEAST_NOISE["eager"]


class Speedup(Record):
    """Median of paired ratios baseline / candidate with its 95 % bootstrap interval and the A/A noise beside
    it. `waits`: the candidate waits for the device in its call, so its time holds the host's work.
    `links`: of the captured chain, or 1.
    """

    contract: Contract

    ratio: float
    low: float
    high: float
    baseline_us: float
    candidate_us: float
    baseline_p20_p80_us: tuple[float, float]
    candidate_p20_p80_us: tuple[float, float]
    noise_pct: float
    samples: int
    dropped: int
    links: int
    waits: bool = False

    @property
    def significant(self) -> bool | None:
        """Whether the interval excludes 1.0 by more than twice the A/A noise of this trial, or the least;
        None where nothing can be claimed, because no noise was measured of a call that waits."""
        if self.waits:
            return None
        noise = max(PROCESSES_APART * self.noise_pct / 100, least_noise(self.contract, self.links))
        return self.low > 1 + noise or self.high < 1 - noise


class Verdict(Record):
    status: Status
    kind: str | None = None  # for WRONG one of `Wrong`; for TAMPERED the rule
    failure: Failure | None = None
    speedup: Speedup | None = None  # PASSED and timed
    unclaimed: Speedup | None = (
        None  # UNSTABLE: too wide an interval for a number, and nothing else against it
    )

    @model_validator(mode="after")
    def _legal(self) -> Verdict:
        if self.speedup is not None and self.status != "PASSED":
            raise ValueError(f"{self.status} cannot carry a speed-up")
        if self.unclaimed is not None and self.status != "UNSTABLE":
            raise ValueError(f"{self.status} cannot carry a ratio that it does not claim")
        if (self.status == "WRONG") != (self.kind in get_args(Wrong)):
            raise ValueError(f"WRONG needs a kind of {get_args(Wrong)}, got {self.status}({self.kind})")
        if self.kind is not None and self.status not in ("WRONG", "TAMPERED"):
            raise ValueError(f"{self.status} has no kind")
        if self.status == "TAMPERED" and not self.kind:
            raise ValueError("TAMPERED needs the rule that was broken")
        if (self.status == "PASSED") == (self.failure is not None):
            raise ValueError(f"{self.status} {'cannot' if self.failure else 'must'} carry a failure")
        return self

    @classmethod
    def passed(cls, speedup: Speedup | None = None) -> Verdict:
        """Correct; `speedup` is None for a held-out case, which is checked but not timed."""
        return cls(status="PASSED", speedup=speedup)

    @classmethod
    def wrong(cls, kind: Wrong, message: str, place: Place | None = None) -> Verdict:
        return cls(status="WRONG", kind=kind, failure=Failure(message=message, place=place))

    @classmethod
    def failed(cls, status: Status, failure: Failure, kind: str | None = None) -> Verdict:
        return cls(status=status, kind=kind, failure=failure)

    def explained(self, where: str) -> Verdict:
        """The same failure, with where it showed."""
        assert self.failure is not None
        return self.noted(message=f"{self.failure.message}, {where}")

    def noted(self, **facts: Any) -> Verdict:
        """The same, with these fields of its failure."""
        assert self.failure is not None
        return self.model_copy(update={"failure": self.failure.model_copy(update=facts)})

    @property
    def label(self) -> str:
        """`PASSED`, `WRONG(value)`: what tables and JSON show."""
        return f"{self.status}({self.kind})" if self.kind else self.status
