"""One trial: a candidate on one case, against two baseline processes. One loop checks and times.

    blocks     fresh inputs → baseline A, candidate C, baseline A', in an order drawn anew for every block
    pairs      A / C and A' / C: both baseline processes, so that what is systematic about one of them halves
    noise      A / A' of the same blocks: what two identical processes differ by, here and now
    chains     in the graph contract a call is timed in a chain of links, each with its own module and
               tensors (measure/chain.py), and from time to time all sides build new ones at other places

First every distribution of inputs meets the oracle, at old and new addresses, with repeated calls; then,
for a timed case, blocks follow until the interval is narrow or the budget is spent. Every one of them is
checked as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch

from fastkernels.errors import MachineError
from fastkernels.judge.verdict import Speedup, Verdict
from fastkernels.loader.inputs import DISTRIBUTIONS, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.measure import roofline, stats
from fastkernels.measure.ceilings import ceilings
from fastkernels.measure.chain import ChainPlan, chain_plan
from fastkernels.records import Case, Failure, TensorSpec
from fastkernels.registry.schema import TaskEntry
from fastkernels.runner import audit
from fastkernels.runner.bench import Bench, Outcome
from fastkernels.runner.blocks import Blocks, durations_ns
from fastkernels.runner.lineup import Lineup
from fastkernels.runner.party import Party, Reading
from fastkernels.runner.referee import Referee

WARM_UP_BLOCKS = 3  # checked, not counted: clocks and caches settle
BUDGET_EXTENSION = 2  # times the budget, for a case whose interval is still unusably wide
FEW_SAMPLES_EXTENSION = 20  # times the budget, for calls so slow that it holds fewer than MIN_SAMPLES
USUAL_SHARE = 0.75  # of timed blocks draw `normal`; the others any distribution
FRESH_SHARE = 0.25  # of blocks find their inputs at new addresses
ORACLE_SHARE = 0.1  # of timed blocks also meet the oracle; nobody but the judge knows which
PARAMETER_ECHO_SHARE = (
    0.15  # of blocks look whether the parameters changed; other inputs are looked at always
)
REPACK_SHARE = 0.06  # of blocks bring new parameters to a module that repacks them
# What windows of the two sides may differ by beside the call. In a graph's window the spin may differ
# (contracts.py); in an eager one also the host's own time, which the contract hides.
WINDOW_SLACK_NS: dict[str, int | None] = {"host": 0, "graph": 1_000_000, "eager": None}
# Links of a chain for each block that it lasts: long chains cost more to build, and need it less.
LINKS_OF_A_BLOCK = 4
MIN_GROWTH = 1.25  # samples between two looks at the interval grow by this


@dataclass(frozen=True)
class _Sampled:
    blocks: Blocks
    interval: stats.Interval
    decision: stats.Stop


_NO_INTERVAL = stats.Interval(1.0, 1.0, 1.0, 0)


class Trial:
    """`run` gives the Outcome; baseline and candidate problems are verdicts in it, never exceptions."""

    def __init__(
        self,
        bench: Bench,
        entry: TaskEntry,
        case: Case,
        parties: tuple[Party, Party, Party],
        layers: Sequence[str],
        implementations: dict[str, str],
    ) -> None:
        """`parties`: baseline A, candidate C, baseline A'. `layers` and `implementations` are the
        candidate's."""
        self._bench, self._entry, self._case = bench, entry, case
        specs = trial_specs(case, build_module(bench.baseline, case, "meta"))
        self._referee = Referee(entry, case, specs, bench.baseline, bench.device, bench.rng)
        self._outcome = Outcome(Verdict.passed(), contract=bench.contract)
        self._lineup = Lineup(
            bench,
            case,
            specs,
            self._referee.mutable,
            parties,
            layers,
            implementations,
            self._outcome,
            self._chain(specs),
        )

    def run(self) -> Outcome:
        outcome = self._outcome
        try:
            outcome.verdict = self._judge()
        except MachineError as error:
            message = f"this machine cannot judge the case: {error}"
            outcome.verdict = Verdict.failed("INVALID_BASELINE", Failure(message=message))
        finally:
            outcome.verdict = self._undisturbed() or outcome.verdict
            self._lineup.close()
        outcome.worst, outcome.checked = self._referee.worst, self._referee.checked
        outcome.notes += self._referee.notes
        return outcome

    def _judge(self) -> Verdict:
        if verdict := self._lineup.open():
            return verdict
        if verdict := self._correct():
            return verdict
        if not self._case.timed:
            return self._referee.final() or Verdict.passed()
        if self._bench.contract == "graph" and (verdict := self._lineup.capture()):
            return verdict
        return self._time()

    def _undisturbed(self) -> Verdict | None:
        """TAMPERED(baseline) where a baseline process was rescheduled; another takes its place then."""
        found = None
        for party in (self._lineup.a, self._lineup.a2):
            if party.worker.alive and (verdict := audit.moved(party.standing, party.worker.standing())):
                party.worker.close()
                found = verdict
        return found

    def _chain(self, specs: Mapping[str, TensorSpec]) -> ChainPlan:
        """One link where nothing will be captured."""
        if self._bench.contract != "graph" or not self._case.timed:
            return ChainPlan()
        taken = {name: prod(spec.shape) * getattr(torch, spec.dtype).itemsize for name, spec in specs.items()}
        parameter_bytes = sum(size for name, size in taken.items() if name.startswith("param."))
        return chain_plan(
            floor_s=roofline.floor_s(self._work, ceilings(self._bench.device)),
            read_bytes=self._work.read_bytes,
            parameter_bytes=parameter_bytes,
            other_bytes=sum(taken.values()) - parameter_bytes,
            memory_bytes=torch.cuda.get_device_properties(0).total_memory,
        )

    @cached_property
    def _work(self) -> roofline.Work:
        return roofline.work(self._case, self._bench.baseline)

    # ------------------------------------------------------------ correctness

    def _correct(self) -> Verdict | None:
        """Every distribution against the oracle, and what repetition shows."""
        for number, distribution in enumerate(DISTRIBUTIONS):
            self._lineup.refill(distribution)
            found = self._lineup.block(
                [self._lineup.a, self._lineup.c],
                "host",
                fresh=number % 2 == 1,
                parameters=True,
                echo_parameters=True,
            )
            if isinstance(found, Verdict):
                return found
            if verdict := self._check(found, distribution, full=True):
                return verdict
        return self._repeat(DISTRIBUTIONS[-1])

    def _repeat(self, distribution: str) -> Verdict | None:
        """The same inputs again must give the same; and results must survive a later call on other inputs."""
        copies: list[tuple[Reading, dict[str, torch.Tensor]]] = []
        for call in ("first", "again", "other"):
            if call == "other":
                self._lineup.refill(distribution)
            found = self._lineup.block(
                [self._lineup.c],
                "host",
                fresh=call == "again",
                parameters=call == "other",
                echo_parameters=True,
            )
            if isinstance(found, Verdict):
                return found
            reading = found[id(self._lineup.c)]
            if verdict := self._referee.unchanged(self._lineup.inputs, reading.echo):
                return verdict
            copies.append((reading, {name: tensor.clone() for name, tensor in reading.outputs.items()}))
        (first, at_first), (second, at_second), _ = copies
        if set(first.outputs) != set(second.outputs):
            return Verdict.wrong(
                "unstable_result", "two calls on the same inputs return results of other shapes"
            )
        if verdict := self._referee.repeatable(at_first, at_second, distribution):
            return verdict
        later = self._lineup.again(second)
        return later if isinstance(later, Verdict) else self._referee.survived(at_second, later)

    def _check(self, found: dict[int, Reading], distribution: str, full: bool) -> Verdict | None:
        referee, ours, theirs = self._referee, found[id(self._lineup.c)], found[id(self._lineup.a)]
        if verdict := audit.other_flags(ours, theirs) or referee.described(ours, theirs):
            return verdict
        inputs = self._lineup.inputs
        oracle_link = self._bench.rng.randrange(len(ours.described)) if full else None
        wrong = referee.check(inputs, ours, theirs, distribution, oracle_link)
        return wrong or referee.unchanged(inputs, ours.echo)

    # ------------------------------------------------------------ time

    def _time(self) -> Verdict:
        sampled = self._sample()
        if isinstance(sampled, Verdict):
            return sampled
        if verdict := self._audit(sampled.blocks):
            return verdict
        if sampled.decision == "unstable":
            return self._unstable(sampled)
        return self._conclude(sampled)

    def _sample(self) -> _Sampled | Verdict:
        """Blocks until the interval is narrow or the budget spent."""
        bench, blocks = self._bench, Blocks()
        budget_s = usual_budget_s = bench.budget_s
        begin, index, next_look = time.monotonic(), 0, float(stats.MIN_SAMPLES)
        while True:
            parameters = not self._lineup.c.prepares or bench.draws(REPACK_SHARE)
            if self._outcome.contract == "graph":
                if index and self._renews(index, parameters) and (verdict := self._lineup.renew()):
                    return verdict
                parameters = not self._lineup.c.prepares  # what is repacked came with the new chain
            distribution = "normal" if bench.draws(USUAL_SHARE) else bench.rng.choice(DISTRIBUTIONS)
            self._lineup.refill(distribution, parameters)
            order = self._lineup.everybody
            found = self._lineup.block(
                bench.rng.sample(order, len(order)),
                self._outcome.contract,
                fresh=self._fresh(),
                parameters=parameters,
                echo_parameters=bench.draws(PARAMETER_ECHO_SHARE),
            )
            if isinstance(found, Verdict):
                return found
            if verdict := self._check(found, distribution, full=bench.draws(ORACLE_SHARE)):
                return verdict
            if verdict := audit.impossible(found[id(self._lineup.c)]):
                return verdict
            if index >= WARM_UP_BLOCKS:
                blocks.add(index - WARM_UP_BLOCKS, *(found[id(party)] for party in order))
            index += 1
            elapsed_s = time.monotonic() - begin
            few = len(blocks.c) < stats.MIN_SAMPLES and elapsed_s < FEW_SAMPLES_EXTENSION * usual_budget_s
            if few or (len(blocks.c) < next_look and elapsed_s < budget_s):
                continue
            next_look = max(next_look, len(blocks.c) * MIN_GROWTH)
            counted = blocks.unthrottled()
            interval = counted.speedup() if len(counted.c) > 1 else None
            decision = stats.stop(interval, elapsed_s, budget_s)
            if decision == "unstable" and budget_s == usual_budget_s:
                budget_s *= BUDGET_EXTENSION
            elif decision != "continue":
                return _Sampled(counted, interval or _NO_INTERVAL, decision)

    def _audit(self, blocks: Blocks) -> Verdict | None:
        """Whether the candidate's own account of its time can be true."""
        if verdict := audit.restless(blocks.c):
            return verdict
        slack_ns = WINDOW_SLACK_NS[self._outcome.contract]
        if slack_ns is not None and (verdict := audit.understated(blocks.c, blocks.a, slack_ns)):
            return verdict
        return audit.too_many_threads(blocks.c, self._bench.threads) if self._bench.device == "cpu" else None

    def _renews(self, index: int, parameters: bool) -> bool:
        """Whether this block gets a new chain: at other places, and for parameters that are repacked.

        A call that fills a chain by itself is too long for its place to matter.
        """
        links = self._lineup.plan.links
        due = links > 1 and index % max(1, links // LINKS_OF_A_BLOCK) == 0
        return due or (self._lineup.c.prepares and parameters)

    def _fresh(self) -> bool:
        """Whether an uncaptured call finds its inputs elsewhere."""
        return self._outcome.contract != "graph" and self._bench.draws(FRESH_SHARE)

    def _unstable(self, sampled: _Sampled) -> Verdict:
        blocks, interval = sampled.blocks, sampled.interval
        width = (
            f"the interval is still {100 * interval.half_width:.1f} % wide"
            if interval.n
            else "no usable sample"
        )
        message = (
            f"{len(blocks.c)} samples, {blocks.dropped} dropped: {width}. Is something else running here? "
            "Try a larger --budget"
        )
        return Verdict.failed("UNSTABLE", Failure(message=message))

    def _conclude(self, sampled: _Sampled) -> Verdict:
        outcome, bench, blocks = self._outcome, self._bench, sampled.blocks
        interval, identical = sampled.interval, blocks.identical()
        if verdict := self._referee.final():
            return verdict
        theirs, ours = (stats.summarize(ns / 1e3) for ns in (blocks.baseline_ns(), durations_ns(blocks.c)))
        candidate_s = ours.median / 1e6
        work, limits = self._work, ceilings(bench.device)
        if problem := roofline.implausible(work, limits, candidate_s):
            return Verdict.failed("IMPLAUSIBLE", Failure(message=problem))
        outcome.roofline_pct = roofline.roofline_pct(work, limits, candidate_s)
        clocks = [r.clock_mhz for r in blocks.c if r.clock_mhz is not None]
        outcome.clock_mhz = int(np.median(clocks)) if clocks else None
        return Verdict.passed(
            Speedup(
                ratio=interval.median,
                low=interval.low,
                high=interval.high,
                baseline_us=theirs.median,
                candidate_us=ours.median,
                baseline_p20_p80_us=(theirs.p20, theirs.p80),
                candidate_p20_p80_us=(ours.p20, ours.p80),
                noise_pct=stats.noise_pct([identical]),
                samples=len(blocks.c),
                dropped=blocks.dropped,
            )
        )
