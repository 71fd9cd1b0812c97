"""Whether a task may be judged by: `audit_case` on one case, `admit` on all cases of a task.

A case is admitted if the reference is sound, all that must pass passes, and all that must fail fails, by a
margin of 4 beyond the worst of what must pass: of error ratios (error / allowed error, the largest of all
draws: a trial judges every distribution, and one call that fails condemns), or of the errors themselves, in
one output on inputs on which it fails. What is allowed differs from row to row, and a right kernel that comes
close to it in one row says nothing of a mistake in another.

What must fail is not looked at again once it is DECIDED. effects.py says which mistakes are none in a case. A
mistake may be smaller than one that a kernel would make: a feature of a matrix, where kernels lose a tile. A
case that shows the tile alone leaves the feature to another case.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fastkernels.audit import alternates, mutants, trivial
from fastkernels.audit.alternates import Unavailable
from fastkernels.audit.effects import MARGIN, At, Effect, Lost, effect
from fastkernels.audit.gate import Gate, Ruling
from fastkernels.audit.subject import RIGHT, Change, Draw, NotApplicable, Subject
from fastkernels.audit.suspects import Golden, Suspect
from fastkernels.judge.bounds import Excuse
from fastkernels.loader.inputs import DISTRIBUTIONS
from fastkernels.measure.roofline import work
from fastkernels.records import AuditCheck, AuditRow, AuditTask, Case
from fastkernels.registry.schema import TaskEntry

# An error ratio from which nothing can follow any more: what passes is at 1 at most. A margin that begins
# here is a lower bound.
DECIDED = 4 * MARGIN
# Of inputs: of a single row of a sampler as many say little about a distribution, which cases of more rows
# show in a few.
MOST_DRAWS = 128


def audit_case(entry: TaskEntry, case: Case, device: str, seed: int) -> AuditRow:
    """Everything on one case. MachineError where the oracle does not fit into memory."""
    return _Audit(Subject(entry, case, device), seed).row()


@dataclass
class _Audit:
    subject: Subject
    seed: int
    draws: int = 0
    suspects: list[Suspect] = field(default_factory=list)
    goldens: list[Golden] = field(default_factory=list)
    checks: list[AuditCheck] = field(default_factory=list)  # what is known already
    unsound: dict[str, str] = field(default_factory=dict)  # about the reference
    off: dict[At, float] = field(default_factory=dict)  # error of the worst golden
    excuses: dict[str, Mapping[str, Excuse]] = field(default_factory=dict)  # by the inputs' distribution
    constant: set[str] | None = None  # outputs that every call so far returned alike

    def __post_init__(self) -> None:
        self.gate = Gate(self.subject, self.seed)

    def row(self) -> AuditRow:
        for distribution in DISTRIBUTIONS:
            self._look(distribution)
        while self.gate.wants_more and self.draws < MOST_DRAWS:
            self._look("normal")
        self._conclude_draws()
        self._soundness()
        self.gate.close()
        golden = max(self.goldens, key=lambda g: g.ratio)
        self.checks += [self._golden(g) for g in self.goldens]
        doubtful = [s for s in self.suspects if not self._stands_out(s, golden)]
        effects = self._effects([suspect for suspect in doubtful if suspect.change.kind != "trivial"])
        self.checks += [self._suspect(s, golden, effects) for s in self.suspects]
        self._look_at_larger(golden)
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
        # Of several draws of one distribution the first: `_effects` looks at that.
        self.excuses.setdefault(distribution, self.gate.excuses or {})

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
                self.suspects.append(Suspect(found))
        for other in alternates.alternates(subject, draw):
            if isinstance(other, Unavailable):
                self.checks.append(AuditCheck(kind="golden", name=other.name, good=None, reason=other.reason))
            else:
                self.goldens.append(Golden(other))

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
        alike = {name for name in draw.right if torch.equal(draw.right[name], draw.previous[name])}
        self.constant = alike if self.constant is None else self.constant & alike

    def _soundness(self) -> None:
        if work(self.subject.case, self.subject.overlay).min_bytes == 0:
            self.unsound["does work"] = "it reads and writes nothing"
        if self.constant:
            names = ", ".join(sorted(self.constant))
            self.unsound["does work"] = f"in all {2 * self.draws} calls the same: {names}"
        for name in ("finite", "deterministic", "does work"):
            problem = self.unsound.get(name, "")
            self.checks.insert(0, AuditCheck(kind="reference", name=name, good=not problem, reason=problem))

    # ------------------------------------------------------------ verdicts

    def _golden(self, golden: Golden) -> AuditCheck:
        return AuditCheck(
            kind="golden",
            name=golden.alternate.name,
            good=not golden.wrong,
            verdict=golden.wrong or "PASSED",
            error_ratio=_finite(golden.ratio),
            distribution=golden.distribution,
            reason=golden.reason,
        )

    def _stands_out(self, suspect: Suspect, golden: Golden) -> bool:
        return suspect.caught and suspect.margin(golden.ratio, self.off) >= MARGIN

    def _suspect(
        self, suspect: Suspect, golden: Golden, effects: Mapping[str, Mapping[At, Effect]]
    ) -> AuditCheck:
        check = AuditCheck(
            kind=suspect.change.kind,
            name=suspect.name,
            good=self._stands_out(suspect, golden),
            verdict=suspect.verdict,
            error_ratio=_finite(suspect.ratio),
            distribution=suspect.distribution,
        )
        if check.good:
            return check
        problem = "the judge accepts it"
        if suspect.caught:
            margin = suspect.margin(golden.ratio, self.off)
            problem = f"fails, but only {margin:.2g} times as wrong as the worst golden"
        if found := effects.get(suspect.name):
            excuse, elsewhere = self._lost.why(suspect.change, found)
            if excuse:
                return check.model_copy(update={"good": None, "reason": excuse, "elsewhere": elsewhere})
            at = max(found, key=lambda at: found[at].seen)
            problem += f"; moves the right {at[1]} by {found[at].seen:.2g} on {at[0]} inputs"
        return check.model_copy(update={"reason": problem})

    def _look_at_larger(self, golden: Golden) -> None:
        """Of mistakes that this case does not show, the larger ones: where it shows one of these, the small
        one is left to another case."""
        bad = {check.name: at for at, check in enumerate(self.checks) if check.good is False}
        larger = {
            suspect.name: Suspect(suspect.change.larger)
            for suspect in self.suspects
            if suspect.name in bad and suspect.change.larger
        }
        for number, distribution in enumerate(DISTRIBUTIONS):
            left = [suspect for suspect in larger.values() if not self._stands_out(suspect, golden)]
            if left:
                draw = self._draw(number, distribution)
                self.gate.open(draw)
                for suspect in left:
                    suspect.rule(self._judge(draw, suspect.change), distribution)
        for name, suspect in larger.items():
            found, check = self._suspect(suspect, golden, {}), self.checks[bad[name]]
            self.checks.append(found)
            if found.good:
                reason = f"{check.reason}; {suspect.name} is told apart"
                update = {"good": None, "reason": reason, "elsewhere": True}
                self.checks[bad[name]] = check.model_copy(update=update)
        self.suspects += larger.values()

    @property
    def _lost(self) -> Lost:
        subject = self.subject
        drawn = self.gate.draws if self.gate.rule == "sampler" else None
        return Lost(subject.dtype, subject.entry.has_parts, self.off, drawn)

    def _effects(self, suspects: Sequence[Suspect]) -> dict[str, dict[At, Effect]]:
        """How far each mistake moves the exact answer on the inputs that were judged."""
        subject, as_judged = self.subject, self.gate.as_judged
        found: dict[str, dict[At, Effect]] = {suspect.name: {} for suspect in suspects}
        replay = subject.replay()
        for number, distribution in enumerate(DISTRIBUTIONS if suspects else ()):
            draw = self._draw(number, distribution)
            with replay.recording():
                exact = subject.oracle(draw.inputs)
            wide, right = draw.wide(exact, draw.previous), as_judged(exact)
            for suspect in suspects:
                changed = as_judged(subject.exact(wide, suspect.change, replay))
                for name, truth in right.items():
                    at, excuse = (distribution, name), self.excuses[distribution].get(name)
                    moved = effect(changed[name], truth, subject.dtype, excuse, suspect.error(at))
                    found[suspect.name][at] = moved
        return found

    def _row(self, golden: Golden) -> AuditRow:
        case = self.subject.case
        measured = [s for s in self.suspects if self._counts(s) and math.isfinite(s.ratio)]
        margin, ratio, closest = min(
            ((s.margin(golden.ratio, self.off), s.ratio, s.name) for s in measured),
            default=(math.inf, math.inf, ""),
        )
        return AuditRow(
            task=case.task,
            variant=case.variant,
            case=case.id,
            rule=self.gate.rule,
            admitted=all(check.good is not False for check in self.checks),
            margin=_finite(margin) if math.isfinite(golden.ratio) else None,
            closest=closest,
            closest_ratio=_finite(ratio),
            golden=golden.alternate.name,
            golden_ratio=_finite(golden.ratio),
            draws=self.draws,
            checks=tuple(self.checks),
        )

    def _counts(self, suspect: Suspect) -> bool:
        return any(c.name == suspect.name and c.good is not None for c in self.checks)


def _finite(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None


# ---------------------------------------------------------------- a task


def admit(task: str, rows: Sequence[AuditRow]) -> AuditTask:
    """A task from its audited cases. A case in which anything is bad is refused by itself, and so is one that
    leaves to another case what none of those that stay shows; the task is admitted if one stays."""
    refused = {row.case: tuple(_bad(row)) for row in rows if not row.admitted}
    kept = [row for row in rows if row.admitted]
    while open_ := _left_open(kept):
        refused |= open_
        kept = [row for row in kept if row.case not in open_]
    return AuditTask(
        task=task,
        admitted=bool(kept),
        problems=() if kept else (f"none of {len(rows)} audited cases is admitted",),
        refused={case: "; ".join(them) for case, them in refused.items()},
    )


def _left_open(rows: Sequence[AuditRow]) -> dict[str, tuple[str, ...]]:
    """What cases leave to another and no case shows; of those that do."""
    shown = {check.name for row in rows for check in row.checks if check.good}
    left = {
        row.case: tuple(
            f"{check.name}: not shown by this case, nor by any other"
            for check in row.checks
            if check.elsewhere and check.name not in shown
        )
        for row in rows
    }
    return {case: reasons for case, reasons in left.items() if reasons}


def _bad(row: AuditRow) -> Iterable[str]:
    return (f"{check.name}: {check.reason}" for check in row.checks if check.good is False)
