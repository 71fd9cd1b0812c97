"""Everything that the judge holds against a candidate's results in one trial: rules, oracle, memory of what
was seen.

Inputs are the judge's own copies, [links, ...] as all tensors of an iteration; a group has ranks where a
chain has links. The full gate runs the float64 oracle; the quick one compares with the baseline's results on
the same inputs and calls the oracle only where it suspects something (judge/compare.py).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fastkernels.judge import compare, metadata, rules, sampler
from fastkernels.judge.compare import Comparison
from fastkernels.judge.conditioning import excuses
from fastkernels.judge.distance import Errors
from fastkernels.judge.oracle import Oracle
from fastkernels.judge.sampler import SamplerJudge
from fastkernels.judge.selection import logits_of
from fastkernels.judge.verdict import Verdict
from fastkernels.loader import ranks, views
from fastkernels.loader.materialize import mutable_names
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Case, Failure, TensorSpec
from fastkernels.registry.schema import TaskEntry
from fastkernels.runner.kernel_trial import claim_checks
from fastkernels.runner.kernel_trial.bench import Evidence
from fastkernels.runner.worker.reading import Reading


class Referee:
    """One candidate on one case. `worst` is the comparison with the largest error ratio so far."""

    def __init__(
        self,
        entry: TaskEntry,
        case: Case,
        specs: Mapping[str, TensorSpec],
        overlay: Overlay,
        device: str,
        rng: random.Random,
    ) -> None:
        self._entry, self._case = entry, case
        self._specs = specs
        self._oracle = Oracle(case, overlay, device)
        self.mutable = mutable_names(entry.mutates, specs)
        self._caches = [name for name, spec in specs.items() if spec.draw == "cache"]
        self._states = [name for name, spec in specs.items() if spec.draw == "state"]
        self._allowed: dict[str, dict[str, Errors]] = {}
        self._rng = rng
        self._samplers = self._new_samplers()
        self.changes_alone = sampler.calls_that_change(specs) if entry.rule == "sampler" else {}
        self.worst: Comparison | None = None
        self.wrong: Evidence | None = None  # of the last comparison with the oracle that failed
        self.checked = 0

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"{self._case.task} {self._case.id}: {self._oracle.note}",) if self._oracle.note else ()

    def judge(
        self,
        inputs: Mapping[str, Tensor],
        candidate: Reading,
        baseline: Reading,
        distribution: str,
        oracle_link: int | None,
    ) -> Verdict | None:
        """All that one iteration shows: None when the candidate passes. `oracle_link`: of the reading, to be
        held against the oracle."""
        check = self.check if self._case.ranks == 1 else self._check_ranks
        found = (
            claim_checks.other_settings(candidate, baseline)
            or self.described(candidate, baseline)
            or check(views.values(inputs), candidate, baseline, distribution, oracle_link)
            or self.unchanged(inputs, candidate.echo)
            or self.lasting(candidate)
            or claim_checks.strayed(candidate)
        )
        lay_so = bool(candidate.strided) and all(candidate.strided)
        return found.explained(self._layout) if found and found.status == "WRONG" and lay_so else found

    @property
    def _layout(self) -> str:
        """Where inputs lay in a call in which they did not lie packed."""
        told = [f"{name} with strides {list(v.strides)}" for name, s in self._specs.items() if (v := s.view)]
        return f"where inputs lie as in the model: {', '.join(told)}"

    def unchanged(self, inputs: Mapping[str, Tensor], echo: Mapping[str, Tensor]) -> Verdict | None:
        """WRONG(mutated_input) unless every echoed input has the bytes that the judge wrote."""
        changed = [
            name
            for name, seen in echo.items()
            if name not in self.mutable and not torch.equal(_bits(seen), _bits(inputs[name][: len(seen)]))
        ]
        if not changed:
            return None
        told = [self._changed(name, echo[name], inputs[name]) for name in sorted(changed)]
        return Verdict.wrong("mutated_input", f"the call {' and '.join(told)}")

    def lasting(self, candidate: Reading) -> Verdict | None:
        """WRONG(unstable_result) where other results lie in memory than when the clock had stopped."""
        if candidate.lasting:
            return None
        return Verdict.wrong("unstable_result", "the results changed once the clock had stopped")

    def described(self, candidate: Reading, baseline: Reading) -> Verdict | None:
        """Shape, dtype, device, type and aliasing against the baseline's results, in every link."""
        layouts = candidate.strided or (False,) * len(candidate.described)
        for ours, theirs, layout in zip(candidate.described, baseline.described, layouts, strict=True):
            if verdict := metadata.check(ours, theirs):
                return verdict
            first = candidate.described[layouts.index(layout)]
            if any(ours[name].stride != first[name].stride for name in ours):
                return Verdict.wrong("stride", "calls on inputs of the same shapes return other strides")
        missing = sorted(set(baseline.outputs) - set(candidate.outputs))
        if missing:
            return Verdict.wrong(
                "stride", f"{', '.join(missing)}: spread over more memory than twice the baseline's"
            )
        return None

    def check(
        self,
        inputs: Mapping[str, Tensor],
        candidate: Reading,
        baseline: Reading,
        distribution: str,
        oracle_link: int | None,
    ) -> Verdict | None:
        """This iteration against the baseline's results on the same inputs, and one link of it against the
        oracle, which also has its say where the comparison is suspicious or nothing is known yet of this
        distribution. None when the candidate passes."""
        links = len(candidate.described)
        if self._entry.rule == "sampler":
            self.checked += links
            return self._sampled(*map(_joined, (inputs, candidate.outputs, baseline.outputs)))
        if oracle_link is not None:
            verdict = self._against_oracle(inputs, candidate, baseline, distribution, oracle_link)
            if verdict or links == 1:
                return verdict
        known = self._entry.rule == "exact" or distribution in self._allowed
        if known and not self._suspects(candidate, baseline, distribution):
            self.checked += links
            return None
        verdicts = (
            self._against_oracle(inputs, candidate, baseline, distribution, link) for link in range(links)
        )
        return next((verdict for verdict in verdicts if verdict), None)

    def _check_ranks(
        self,
        inputs: Mapping[str, Tensor],
        candidate: Reading,
        baseline: Reading,
        distribution: str,
        oracle_rank: int | None,
    ) -> Verdict | None:
        """`check` of a group: WRONG(rank_divergent) where one rank is wrong and another right, or where the
        ranks should have the same bits and have not."""
        found = self.check(inputs, candidate, baseline, distribution, oracle_rank)
        if found is None:
            return rules.replicated(candidate.outputs) if self._entry.replicates else None
        if found.status != "WRONG":
            return found
        each = [
            self._against_oracle(inputs, candidate, baseline, distribution, rank)
            for rank in range(self._case.ranks)
        ]
        wrong = [(r, v.failure) for r, v in enumerate(each) if v and v.status == "WRONG" and v.failure]
        # Where it is a near thing, other draws of how far the answer moves may let all of them pass.
        if None not in each or not wrong:
            return found
        rank, failure = wrong[0]
        return Verdict.wrong(
            "rank_divergent",
            f"rank {rank}: {failure.message}; rank {each.index(None)} is right",
            failure.place,
        )

    def _against_oracle(
        self,
        inputs: Mapping[str, Tensor],
        candidate: Reading,
        baseline: Reading,
        distribution: str,
        link: int,
    ) -> Verdict | None:
        self.checked += 1
        inputs = ranks.seen_from(link, self._case.ranks, inputs)
        ours, theirs = self._judged(candidate, link), self._judged(baseline, link)
        expected = self._oracle(inputs)
        truth = self._strip(expected)
        if self._entry.rule == "exact":
            if not rules.exact(theirs, truth).passed:
                return _invalid("the baseline differs from the oracle of an exact task")
            comparison = rules.exact(ours, truth)
        else:
            standard = compare.Standard(theirs, truth)
            comparison = standard.compare(ours, logits_of(self._entry, inputs))
            known = self._allowed.get(distribution)
            if comparison.allowed:
                self._allowed[distribution] = compare.merge(*([known] if known else []), comparison.allowed)
            if comparison.verdict.label == "WRONG(value)":
                excused = excuses(standard, self._oracle, self._strip, inputs, self._case, self.checked)
                comparison = standard.loosened(comparison, excused)
        self._remember(comparison)
        if comparison.passed:
            return None
        verdict = compare.located(comparison, ours, truth)
        strided = bool(candidate.strided) and candidate.strided[link]
        self.wrong = Evidence(self._laid(inputs, strided), expected, _of_link(candidate, link))
        if verdict.failure is None or (place := verdict.failure.place) is None:
            return verdict
        return verdict.noted(place=rules.of_call(place, expected[place.output], self._caches, self._states))

    def evidence(self, inputs: Mapping[str, Tensor], strided: bool) -> Evidence:
        """What was wrong where the oracle said so; else the first link of these inputs, with what is right
        for them and without what the candidate made of them. `strided`: they lay as in the model."""
        if self.wrong is None:
            first = ranks.seen_from(0, self._case.ranks, inputs)
            self.wrong = Evidence(self._laid(first, strided), self._oracle(first), {})
        return self.wrong

    def _laid(self, inputs: Mapping[str, Tensor], strided: bool) -> Mapping[str, Tensor]:
        return views.as_in_model(self._specs, inputs) if strided else inputs

    def _suspects(self, candidate: Reading, baseline: Reading, distribution: str) -> bool:
        """Rows of all links are compared together: a row has its bound, wherever it is."""
        ours, theirs = (_joined(self._strip(r.outputs, links=True)) for r in (candidate, baseline))
        if self._entry.rule == "exact":
            return not rules.exact(ours, theirs).passed
        return compare.suspect(ours, theirs, self._allowed[distribution]) is not None

    def repeatable(
        self, first: Mapping[str, Tensor], second: Mapping[str, Tensor], distribution: str
    ) -> Verdict | None:
        """Two calls on the same inputs agree as right results must; exactly, where nothing is tolerated."""
        exact = {name: Errors(0.0, 0.0, 0.0) for name in first}
        one, two = (_joined(self._strip(results, links=True)) for results in (first, second))
        return rules.repeatable(one, two, self._allowed.get(distribution, exact))

    def survived(self, at_return: Mapping[str, Tensor], later: Mapping[str, Tensor]) -> Verdict | None:
        """The results of a call, copied when it returned, against what lies there after the next call."""
        return rules.untouched({name: at_return[name] for name in later}, later)

    @property
    def wants_draws(self) -> bool:
        """Whether a sampler drew too little for its distribution to show. Temperature 0 draws nothing."""
        judge = self._samplers["candidate"]
        return self._entry.rule == "sampler" and judge.draws > 0 and not judge.enough

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """In the body, of calls that differ by steps, the draws are counted and have their `final` apart."""
        before, self._samplers = self._samplers, self._new_samplers(in_steps=True)
        try:
            yield
        finally:
            self._samplers = before

    def final(self) -> Verdict | None:
        """What only all iterations together show: the distribution of a sampler's draws."""
        if self._entry.rule != "sampler":
            return None
        if not self._samplers["baseline"].verdict().passed:
            return _invalid("the baseline's draws do not follow the distribution")
        comparison = self._samplers["candidate"].verdict()
        return None if comparison.passed else comparison.verdict

    def _changed(self, name: str, seen: Tensor, given: Tensor) -> str:
        """What a call did that left these bytes."""
        if not views.is_storage(name):
            return f"changed its input {name}"
        inputs = " and ".join(views.within(self._specs, name))
        given = given[: len(seen)]
        is_changed = _bits(seen) != _bits(given)
        if bool(views.beside(given)[is_changed].all()):
            return f"wrote beside its input {inputs}: in a model other tensors lie there"
        return f"changed its input {inputs}"

    def _new_samplers(self, in_steps: bool = False) -> dict[str, SamplerJudge]:
        return {side: SamplerJudge(self._rng.getrandbits(62), in_steps) for side in ("baseline", "candidate")}

    def _sampled(
        self, inputs: Mapping[str, Tensor], ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
    ) -> Verdict | None:
        question = sampler.Question.of(inputs)
        (name,) = theirs
        if problem := self._samplers["baseline"].check(theirs[name], question):
            return _invalid(f"the baseline: {problem.failure.message if problem.failure else problem.label}")
        return self._samplers["candidate"].check(ours[name], question)

    def _judged(self, reading: Reading, link: int) -> dict[str, Tensor]:
        return self._strip(_of_link(reading, link))

    def _strip(self, outputs: Mapping[str, Tensor], links: bool = False) -> dict[str, Tensor]:
        return rules.as_judged(outputs, self._caches, self._states, dim=1 if links else 0)

    def _remember(self, comparison: Comparison) -> None:
        if comparison.error_ratio is not None and (
            self.worst is None or comparison.error_ratio > (self.worst.error_ratio or 0)
        ):
            self.worst = comparison


def _of_link(reading: Reading, link: int) -> dict[str, Tensor]:
    return {name: value[link] for name, value in reading.outputs.items()}


def _joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """[links, rows, ...] as [links * rows, ...]."""
    return {name: value.flatten(0, 1) if value.dim() > 1 else value for name, value in tensors.items()}


def _bits(x: Tensor) -> Tensor:
    """x as integers of its own width, so that NaN equals itself and -0 differs from 0."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.contiguous().view(width)


def _invalid(message: str) -> Verdict:
    return Verdict.failed("INVALID_BASELINE", Failure(message=message))
