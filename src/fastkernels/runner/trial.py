"""One trial: a candidate on one case, against two baseline processes. One loop checks and times.

    blocks     fresh inputs → baseline A, candidate C, baseline A', in an order drawn anew for every block
    pairs      A / C and A' / C: both baseline processes, so that what is systematic about one of them halves
    noise      A / A' of the same blocks: what two identical processes differ by, here and now
    places     with captured graphs, every block has all tensors at other addresses (`renew`): from a cold
               cache, where tensors lie moves a call of 5 us by 3 to 10 % (docs/measured.md), and only many
               places average that out
    bias       on CUDA, all this with the baseline in C's process, before the candidate is imported

First every distribution of inputs meets the oracle, at old and new addresses, with repeated calls; then,
for a timed case, blocks follow until the interval is narrow or the budget is spent. Every one of them is
checked as well.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fastkernels.errors import MachineError
from fastkernels.judge.verdict import Speedup, Verdict
from fastkernels.loader.inputs import DISTRIBUTIONS, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.measure import roofline, stats
from fastkernels.measure.ceilings import ceilings
from fastkernels.records import Case, Failure
from fastkernels.registry.schema import TaskEntry
from fastkernels.runner import audit
from fastkernels.runner.bench import Bench, Calibration, Outcome
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
CALIBRATION_SHARE = 0.6  # of the budget, for the baseline in all three processes
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
        calibration: Calibration | None = None,
        base_layers: Sequence[str] = (),
    ) -> None:
        """`parties`: baseline A, candidate C, baseline A'. `layers` and `implementations` are the
        candidate's; `base_layers` lie over the baseline in A and A'."""
        self._calibration = calibration
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
            base_layers,
        )

    def run(self) -> Outcome:
        outcome = self._outcome
        try:
            outcome.verdict = self._judge()
        except MachineError as error:
            message = f"this machine cannot judge the case: {error}"
            outcome.verdict = Verdict.failed("INVALID_BASELINE", Failure(message=message))
        finally:
            self._lineup.close()
        outcome.worst, outcome.checked = self._referee.worst, self._referee.checked
        outcome.notes += self._referee.notes
        return outcome

    def calibrate(self) -> Calibration | None:
        """With the baseline in all three processes (no `layers`): how they differ. None where this cannot be
        told; the trial itself will say why.
        """
        try:
            if self._lineup.open() or self._captured():
                return None
            sampled = self._sample(CALIBRATION_SHARE * self._bench.budget_s, judged=False)
        except MachineError:
            return None
        finally:
            self._lineup.close()
        if isinstance(sampled, Verdict) or sampled.decision == "unstable":
            return None
        return Calibration(self._outcome.contract, sampled.interval, sampled.blocks.identical())

    def _judge(self) -> Verdict:
        if verdict := self._lineup.open():
            return verdict
        if verdict := self._correct():
            return verdict
        if not self._case.timed:
            return self._referee.final() or Verdict.passed()
        if verdict := self._captured():
            return verdict
        return self._time()

    def _captured(self) -> Verdict | None:
        return self._lineup.capture() if self._bench.contract == "graph" else None

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
        if verdict := referee.described(ours, theirs):
            return verdict
        gate = referee.full if full else referee.quick
        return gate(self._lineup.inputs, ours, theirs, distribution) or referee.unchanged(
            self._lineup.inputs, ours.echo
        )

    # ------------------------------------------------------------ time

    def _time(self) -> Verdict:
        sampled = self._sample(self._bench.budget_s, judged=True)
        if isinstance(sampled, Verdict):
            return sampled
        if verdict := self._audit(sampled.blocks):
            return verdict
        if sampled.decision == "unstable":
            return self._unstable(sampled)
        return self._conclude(sampled)

    def _sample(self, budget_s: float, judged: bool) -> _Sampled | Verdict:
        """Blocks until the interval is narrow or the budget spent. `judged`: each block is checked too."""
        bench, blocks, usual_budget_s = self._bench, Blocks(), budget_s
        begin, index, next_look = time.monotonic(), 0, float(stats.MIN_SAMPLES)
        while True:
            if index and (verdict := self._lineup.renew()):
                return verdict
            distribution = "normal" if bench.draws(USUAL_SHARE) else bench.rng.choice(DISTRIBUTIONS)
            parameters = not self._lineup.c.prepares or bench.draws(REPACK_SHARE)
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
            if judged:
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
        slack_ns = WINDOW_SLACK_NS[self._outcome.contract]
        if slack_ns is not None and (verdict := audit.understated(blocks.c, blocks.a, slack_ns)):
            return verdict
        return audit.too_many_threads(blocks.c, self._bench.threads) if self._bench.device == "cpu" else None

    def _fresh(self) -> bool:
        """Whether an uncaptured call finds its inputs elsewhere; a captured one does in every block
        (`renew`).
        """
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
        calibration = self._calibration
        if calibration is not None and calibration.contract != outcome.contract:
            calibration = None  # the candidate cannot be captured: both sides were timed eagerly
        if calibration is not None:
            interval = stats.calibrated(interval, calibration.speedup)
            identical = stats.calibrated(identical, calibration.identical)
        if verdict := self._referee.final():
            return verdict
        theirs, ours = (stats.summarize(ns / 1e3) for ns in (blocks.baseline_ns(), durations_ns(blocks.c)))
        candidate_s = ours.median / 1e6
        work, limits = roofline.work(self._case, bench.baseline), ceilings(bench.device)
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
                bias=calibration.speedup.median if calibration else None,
                samples=len(blocks.c),
                dropped=blocks.dropped,
            )
        )
