"""Whether a task may be judged by: `audit_case` on one case, `admit` on all cases of a task.

A case is admitted if the reference is sound, all that must fail fails, all that must pass passes, and

    margin = smallest error ratio of what must fail / largest error ratio of what must pass  >=  MARGIN

An error ratio is error / allowed error, the largest of all draws: a trial judges every distribution, and one
call that fails condemns. What must fail is not looked at again once it is DECIDED.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fastkernels.audit import alternates, mutants, trivial
from fastkernels.audit.alternates import Alternate, Unavailable
from fastkernels.audit.gate import Gate, Ruling
from fastkernels.audit.subject import RIGHT, Change, Draw, NotApplicable, Subject
from fastkernels.judge import bounds, distance
from fastkernels.loader.inputs import DISTRIBUTIONS
from fastkernels.measure.roofline import work
from fastkernels.records import AuditCheck, AuditRow, AuditTask, Case
from fastkernels.registry.schema import TaskEntry

# Twice the gate is what a timed iteration without an oracle may still let through (judge/compare.py), and an
# honest candidate uses up to half of it: at 4, what must fail fails in every iteration.
MARGIN = 4.0
DECIDED = 100.0  # an error ratio from which nothing can follow any more
# Roundings of the result's dtype: a mistake inside a part that moves the result of a whole module by less and
# is not told apart from right kernels, is lost among the roundings of its other parts. It is judged where the
# part is a task of its own. 16-bit results are computed wider; in float32 each operation of each part rounds,
# and the baseline of a tiny model is off by eight roundings itself.
ROUNDINGS, ROUNDINGS_FLOAT32 = 16, 64
# Roundings of the result's dtype: right kernels are off by one, so what moves the right answer by less than
# four does not stand out by a margin of four. An epsilon beside large numbers: other inputs can show it, and
# another case of the task has to. A sum of few parts in few bits is no mistake; nor is one that costs less
# than four times what right kernels cost on these inputs: they round in between, too. Of any mistake in a
# module that is true of its parts' roundings, and again another case has to show it.
HIDDEN = 4
# Of inputs: of a single row of a sampler as many say little about a distribution, which cases of more rows
# show in a few.
MOST_DRAWS = 128
NOTHING = 1e-12  # what float64 sums of another order differ by: the same mathematics

Errors = dict[tuple[str, str], float]  # by the inputs' distribution and the output's name


@dataclass
class _Suspect:
    """What must fail, and what the judge has said of it so far."""

    change: Change
    ratio: float = 0.0
    verdict: str = "PASSED"
    distribution: str = ""

    @property
    def name(self) -> str:
        return self.change.name

    @property
    def caught(self) -> bool:
        return self.verdict != "PASSED"

    def stands_out(self, golden_ratio: float) -> bool:
        return self.caught and self.ratio >= MARGIN * golden_ratio

    def rule(self, ruling: Ruling, distribution: str) -> None:
        if ruling.ratio > self.ratio or not self.distribution:
            self.ratio, self.distribution = ruling.ratio, distribution
            self.verdict = ruling.verdict.label


@dataclass
class _Golden:
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


def audit_case(entry: TaskEntry, case: Case, device: str, seed: int) -> AuditRow:
    """Everything on one case. MachineError where the oracle does not fit into memory."""
    return _Audit(Subject(entry, case, device), seed).row()


@dataclass
class _Audit:
    subject: Subject
    seed: int
    draws: int = 0
    suspects: list[_Suspect] = field(default_factory=list)
    goldens: list[_Golden] = field(default_factory=list)
    checks: list[AuditCheck] = field(default_factory=list)  # what is known already
    unsound: dict[str, str] = field(default_factory=dict)  # about the reference
    off: Errors = field(default_factory=dict)  # of the worst golden
    answers_differ: bool = False

    def __post_init__(self) -> None:
        self.gate = Gate(self.subject, self.seed)

    def row(self) -> AuditRow:
        for distribution in DISTRIBUTIONS:
            self._look(distribution)
        while self.gate.wants_more and self.draws < MOST_DRAWS:
            self._look("normal")
        self._conclude_draws()
        self._soundness()
        golden = max(self.goldens, key=lambda g: g.ratio)
        self.checks += [self._golden(g) for g in self.goldens]
        doubtful = [s.change for s in self.suspects if not s.stands_out(golden.ratio)]
        effects = self._effects([change for change in doubtful if change.kind != "trivial"])
        self.checks += [self._suspect(s, golden.ratio, effects) for s in self.suspects]
        return self._row(golden)

    # ------------------------------------------------------------ one draw

    def _draw(self, number: int, distribution: str) -> Draw:
        return self.subject.draw(distribution, self.seed + 2 * number)

    def _look(self, distribution: str) -> None:
        draw = self._draw(self.draws, distribution)
        self.gate.open(draw)
        if not self.draws:
            self._gather(draw)
        self.draws += 1
        self._reference(draw)
        for golden in self.goldens:
            outputs = golden.alternate.outputs(self.subject, draw)
            ruling = self.gate.judge(golden.alternate.name, outputs)
            golden.rule(ruling, distribution)
            for name, error in ruling.errors.items():
                self.off[distribution, name] = max(self.off.get((distribution, name), 0.0), error)
        for suspect in self.suspects:
            if suspect.ratio < DECIDED:
                suspect.rule(self._judge(draw, suspect.change), distribution)

    def _judge(self, draw: Draw, change: Change) -> Ruling:
        outputs = self.subject.run(draw, change)
        ruling = self.gate.judge(change.name, outputs)
        if ruling.passed and self.gate.rule == "sampler":
            # In a trial's repetition, the call before had the same inputs.
            again = dataclasses.replace(draw, before=draw.inputs, previous=draw.right)
            return self.gate.repeated(outputs, self.subject.run(again, change))
        return ruling

    def _gather(self, draw: Draw) -> None:
        subject = self.subject
        for found in (*trivial.candidates(subject, draw), *mutants.mutants(subject, draw)):
            if isinstance(found, NotApplicable):
                self.checks.append(
                    AuditCheck(kind=found.kind, name=found.name, good=None, reason=found.reason)
                )
            else:
                self.suspects.append(_Suspect(found))
        for other in alternates.alternates(subject, draw):
            if isinstance(other, Unavailable):
                self.checks.append(AuditCheck(kind="golden", name=other.name, good=None, reason=other.reason))
            else:
                self.goldens.append(_Golden(other))

    def _conclude_draws(self) -> None:
        for golden in self.goldens:
            if ruling := self.gate.final(golden.alternate.name):
                golden.rule(ruling, "all draws")
        for suspect in self.suspects:
            if not suspect.caught and (ruling := self.gate.final(suspect.name)):
                suspect.rule(ruling, "all draws")

    # ------------------------------------------------------------ the reference

    def _reference(self, draw: Draw) -> None:
        reference = dataclasses.replace(RIGHT, implementation="reference")
        first, second = (self.subject.run(draw, reference) for _ in range(2))
        for name, truth in self.gate.truth.items():
            if truth.is_floating_point() and not bool(truth.isfinite().all()):
                self.unsound["finite"] = f"{name} is not finite on {draw.distribution} inputs"
            if not torch.equal(first[name], second[name]):
                self.unsound["deterministic"] = (
                    f"{name} differs between two calls on {draw.distribution} inputs"
                )
            self.answers_differ |= not torch.equal(draw.right[name], draw.previous[name])

    def _soundness(self) -> None:
        if work(self.subject.case, self.subject.overlay).min_bytes == 0:
            self.unsound["does work"] = "it reads and writes nothing"
        if not self.answers_differ:
            self.unsound["does work"] = f"its outputs were the same in all {2 * self.draws} calls"
        for name in ("finite", "deterministic", "does work"):
            problem = self.unsound.get(name, "")
            self.checks.insert(0, AuditCheck(kind="reference", name=name, good=not problem, reason=problem))

    # ------------------------------------------------------------ verdicts

    def _golden(self, golden: _Golden) -> AuditCheck:
        return AuditCheck(
            kind="golden",
            name=golden.alternate.name,
            good=not golden.wrong,
            verdict=golden.wrong or "PASSED",
            error_ratio=_finite(golden.ratio),
            distribution=golden.distribution,
            reason=golden.reason,
        )

    def _suspect(self, suspect: _Suspect, golden_ratio: float, effects: Mapping[str, Errors]) -> AuditCheck:
        check = AuditCheck(
            kind=suspect.change.kind,
            name=suspect.name,
            good=suspect.stands_out(golden_ratio),
            verdict=suspect.verdict,
            error_ratio=_finite(suspect.ratio),
            distribution=suspect.distribution,
        )
        if check.good:
            return check
        problem = "the judge accepts it"
        if suspect.caught:
            problem = f"fails, but only {suspect.ratio / golden_ratio:.2g} times as wrong as the worst golden"
        if found := effects.get(suspect.name):
            excuse, elsewhere = self._excuse(suspect.change, found)
            if excuse:
                return check.model_copy(update={"good": None, "reason": excuse, "elsewhere": elsewhere})
            at = max(found, key=lambda at: found[at])
            problem += f"; moves the right {at[1]} by {found[at]:.2g} on {at[0]} inputs"
        return check.model_copy(update={"reason": problem})

    def _excuse(self, change: Change, effects: Errors) -> tuple[str, bool]:
        """Why a mistake that is not caught is none here, and whether another case has to show it."""
        dtype, effect = self.subject.dtype, max(effects.values())
        rounding, most = bounds.floor(dtype), ROUNDINGS if dtype.itemsize < 4 else ROUNDINGS_FLOAT32
        if effect <= NOTHING and change.unused_part:
            return f"forward never calls it: judged as {change.unused_part}", False
        if effect <= NOTHING:
            return "changes nothing in the right answer", change.kind == "input"
        if self.gate.rule == "sampler":
            return f"{self.gate.draws} draws cannot tell", True
        moves, has_parts = f"moves the right answer by {effect:.2g}", self.subject.entry.has_parts
        # Parts hand on what they rounded to the dtype: sums in it move the answer of the whole as that does.
        where = change.part_of or ("its parts" if has_parts and change.is_rounding else "")
        among = all(found <= MARGIN * self.off.get(at, 0.0) for at, found in effects.items())
        if where and effect <= most * rounding:
            return f"{moves} here: judged as {where}", change.kind == "input"
        if has_parts and effect <= rounding:
            return f"{moves}, rounding alone by {rounding:.2g}", False
        if effect <= HIDDEN * rounding:
            return f"{moves} here, rounding alone by {rounding:.2g}", not change.is_rounding
        if (has_parts or change.is_rounding) and among and effect <= most * rounding:
            why = f"{moves} here, right kernels are off by {max(self.off.values()):.2g}"
            return why, not change.is_rounding
        return "", False

    def _effects(self, changes: Sequence[Change]) -> dict[str, Errors]:
        """How far each mistake moves the exact answer on the inputs that were judged."""
        worst: dict[str, Errors] = {change.name: {} for change in changes}
        for number, distribution in enumerate(DISTRIBUTIONS if changes else ()):
            draw = self._draw(number, distribution)
            exact = self.subject.oracle(draw.inputs)
            wide = draw.wide(exact, draw.previous)
            for change in changes:
                changed = self.subject.exact(wide, change)
                for name, right in exact.items():
                    found = _distance(changed[name], right, self.subject.dtype)
                    worst[change.name][distribution, name] = found
        return worst

    def _row(self, golden: _Golden) -> AuditRow:
        case = self.subject.case
        measured = [s for s in self.suspects if self._counts(s)]
        closest = min(measured, key=lambda s: s.ratio, default=None)
        ratio = closest.ratio if closest else math.inf
        return AuditRow(
            task=case.task,
            variant=case.variant,
            case=case.id,
            rule=self.gate.rule,
            admitted=all(check.good is not False for check in self.checks),
            margin=_finite(ratio / golden.ratio) if golden.ratio and math.isfinite(golden.ratio) else None,
            closest=closest.name if closest and math.isfinite(ratio) else "",
            closest_ratio=_finite(ratio),
            golden=golden.alternate.name,
            golden_ratio=_finite(golden.ratio),
            draws=self.draws,
            checks=tuple(self.checks),
        )

    def _counts(self, suspect: _Suspect) -> bool:
        return any(c.name == suspect.name and c.good is not None for c in self.checks)


def _distance(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> float:
    if torch.equal(one, other):
        return 0.0
    if not one.is_floating_point() or not torch.equal(one.isfinite(), other.isfinite()):
        return math.inf
    return max(distance.errors(one, other, dtype)[:2])


def _finite(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None


# ---------------------------------------------------------------- a task


def admit(task: str, rows: Sequence[AuditRow]) -> AuditTask:
    """A task from its audited cases: all admitted, and nothing left for a case that is not there."""
    problems = [f"{row.case}: {check.name}: {check.reason}" for row in rows for check in _bad(row)]
    shown = {check.name for row in rows for check in row.checks if check.good}
    left = {check.name: row.case for row in rows for check in row.checks if check.elsewhere}
    problems += [
        f"{case}: {name}: not shown by this case, nor by any other"
        for name, case in left.items()
        if name not in shown
    ]
    return AuditTask(task=task, admitted=not problems, problems=tuple(problems))


def _bad(row: AuditRow) -> Iterable[AuditCheck]:
    return (check for check in row.checks if check.good is False)
