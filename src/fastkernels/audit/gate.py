"""What the judge says of outputs, in this process: shape and dtype, then the task's rule, as in a trial.

    gate.open(draw)                       oracle of these inputs
    gate.judge("zeros", outputs)          Ruling(verdict, ratio)
    gate.final("zeros")                   what only all draws together show (a sampler's distribution)

A trial takes a second look where the error-ratio gate says no (judge/conditioning.py); here it is taken of
everything, so that all errors are held against the same allowance. Its oracle runs are shared by everything
that is judged on the same inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fastkernels.audit.subject import Draw, Outputs, Subject
from fastkernels.errors import MachineError
from fastkernels.judge import metadata, rules
from fastkernels.judge.bounds import Excuse
from fastkernels.judge.compare import Standard
from fastkernels.judge.conditioning import excuses
from fastkernels.judge.sampler import Question, SamplerJudge
from fastkernels.judge.selection import logits_of
from fastkernels.judge.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Ruling:
    """`ratio`: error / allowed error, infinite where there is none to measure (another shape, NaN, a copy
    that differs); 0 for what is exact. `errors`: of the outputs whose errors were measured, by name, the
    larger of the whole's and the worst row's.
    """

    verdict: Verdict
    ratio: float
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.verdict.status == "PASSED"


@dataclass
class Gate:
    subject: Subject
    seed: int
    _draw: Draw = field(init=False)
    _question: Question = field(init=False)  # of a sampler
    _standard: Standard = field(init=False)
    truth: Outputs = field(init=False)  # the oracle's outputs, as they are judged
    excuses: Mapping[str, Excuse] | None = None  # where errors were measured, what the inputs excuse
    _samplers: dict[str, SamplerJudge] = field(default_factory=dict)

    @property
    def rule(self) -> str:
        return self.subject.entry.rule

    @property
    def draws(self) -> int:
        """Of a sampler, counted for the baseline: how much is known of a distribution."""
        return max((judge.draws for judge in self._samplers.values()), default=0)

    @property
    def wants_more(self) -> bool:
        """Whether a trial would go on drawing. Rows of temperature 0 draw nothing and need no more."""
        return bool(self.draws) and not any(judge.enough for judge in self._samplers.values())

    def open(self, draw: Draw) -> None:
        """Judge what follows on these inputs. MachineError where the oracle has no room for float64: whether
        a rule is right is no question for another one."""
        self._draw, self.excuses = draw, None
        if self.rule == "sampler":
            self._question = Question.of(draw.inputs)
        self.truth = self.as_judged(self.subject.oracle(draw.inputs))
        if note := self.subject.oracle.note:
            raise MachineError(f"No audit with an {note}")
        self._standard = Standard(self.as_judged(draw.right), self.truth)

    def close(self) -> None:
        """Nothing more is judged on the last inputs: what was known of them takes room."""
        del self._draw, self.truth, self._standard

    def judge(self, name: str, outputs: Outputs) -> Ruling:
        described, expected = (
            {key: metadata.describe(value, {}) for key, value in found.items()}
            for found in (outputs, self._draw.right)
        )
        if verdict := metadata.check(described, expected):
            return Ruling(verdict, math.inf)
        if self.rule == "sampler":
            return self._sampled(name, outputs)
        if self.rule == "exact":
            verdict = rules.exact(self.as_judged(outputs), self.truth).verdict
            return Ruling(verdict, 0.0 if verdict.status == "PASSED" else math.inf)
        return self._valued(outputs)

    def repeated(self, first: Outputs, second: Outputs) -> Ruling:
        """Two calls on the same inputs; for integers, which must be the same."""
        verdict = rules.repeatable(first, second, {})
        return Ruling(verdict, math.inf) if verdict else Ruling(Verdict.passed(), 0.0)

    def final(self, name: str) -> Ruling | None:
        """The distribution of everything that `name` drew; None for other rules."""
        if name not in self._samplers:
            return None
        verdict = self._samplers[name].verdict().verdict
        return Ruling(verdict, 0.0 if verdict.status == "PASSED" else math.inf)

    def _valued(self, outputs: Outputs) -> Ruling:
        logits = logits_of(self.subject.entry, self._draw.inputs)
        comparison = self._standard.compare(self.as_judged(outputs), logits)
        is_measured = comparison.verdict.label in ("PASSED", "WRONG(value)")
        if not (is_measured and comparison.outputs):
            return Ruling(comparison.verdict, 0.0 if comparison.passed else math.inf)
        comparison = self._standard.loosened(comparison, self._excused())
        assert comparison.error_ratio is not None
        errors = {each.name: each.largest for each in comparison.outputs}
        return Ruling(comparison.verdict, comparison.error_ratio, errors)

    def _excused(self) -> Mapping[str, Excuse]:
        if self.excuses is None:
            subject = self.subject
            self.excuses = excuses(
                self._standard, subject.oracle, self.as_judged, self._draw.inputs, subject.case, self.seed
            )
        return self.excuses

    def _sampled(self, name: str, outputs: Outputs) -> Ruling:
        judge = self._samplers.setdefault(name, SamplerJudge(self.seed))
        (ids,) = outputs.values()
        verdict = judge.check(ids, self._question)
        return Ruling(Verdict.passed(), 0.0) if verdict is None else Ruling(verdict, math.inf)

    def as_judged(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Without what nobody reads, and caches by tokens."""
        return rules.as_judged(outputs, self.subject.caches, self.subject.states)
