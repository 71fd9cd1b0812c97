"""What must fail in an audit, what must pass, and what the judge has said of either so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastkernels.audit.alternates import Alternate
from fastkernels.audit.effects import At
from fastkernels.audit.gate import Ruling
from fastkernels.audit.subject import Change


@dataclass
class Suspect:
    """What must fail, and what the judge has said of it so far."""

    change: Change
    ratio: float = 0.0
    verdict: str = "PASSED"
    distribution: str = ""
    errors: dict[At, float] = field(default_factory=dict)  # on inputs on which it fails
    accepted: dict[At, float] = field(default_factory=dict)  # on the others

    @property
    def name(self) -> str:
        return self.change.name

    @property
    def caught(self) -> bool:
        return self.verdict != "PASSED"

    def margin(self, golden_ratio: float, off: Mapping[At, float]) -> float:
        """Beyond the worst of what must pass, of which `off` are the errors."""
        of_errors = [_over(error, off[at]) for at, error in self.errors.items() if at in off]
        return max(_over(self.ratio, golden_ratio), *of_errors, 0.0)

    def error(self, at: At) -> float:
        """On these inputs, in this output; infinite where it has no number there."""
        return self.errors.get(at, self.accepted.get(at, math.inf))

    def rule(self, ruling: Ruling, distribution: str) -> None:
        if ruling.ratio > self.ratio or not self.distribution:
            self.ratio, self.distribution = ruling.ratio, distribution
            self.verdict = ruling.verdict.label
        errors = self.accepted if ruling.passed else self.errors
        errors |= {(distribution, name): error for name, error in ruling.errors.items()}


@dataclass
class Golden:
    alternate: Alternate
    ratio: float = 0.0
    distribution: str = ""
    wrong: str = ""  # the verdict that condemns it
    reason: str = ""

    def rule(self, ruling: Ruling, distribution: str) -> None:
        if ruling.ratio > self.ratio or not self.distribution:
            self.ratio, self.distribution = ruling.ratio, distribution
        if not ruling.passed and not self.wrong:
            failure = ruling.verdict.failure
            self.wrong, self.reason = ruling.verdict.label, failure.message if failure else ""


def _over(wrong: float, right: float) -> float:
    return wrong / right if right else (math.inf if wrong else 0.0)
