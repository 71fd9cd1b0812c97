"""One trial: a candidate on one case, against two baseline processes. One loop checks and times.

    blocks     fresh inputs → baseline A, candidate C, baseline A', in an order drawn anew for every block
    pairs      A / C and A' / C: both baseline processes, so that what is systematic about one of them halves
    noise      A / A' of the same blocks: what two identical processes differ by, here and now
    chains     in the graph contract a call is timed in a chain of links, each with its own module and
               tensors (measure/chain.py), and from time to time all sides build new ones at other places;
               sometimes one link runs alone, so that no link can live on the work of another

First every distribution of inputs meets the oracle, at old and new addresses, with repeated calls; then,
for a timed case, blocks follow until the interval is narrow or the budget is spent. Every one of them is
checked as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from fastkernels.errors import MachineError
from fastkernels.judge.verdict import Speedup, Verdict, too_noisy
from fastkernels.loader.inputs import DISTRIBUTIONS, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.ranks import own
from fastkernels.measure import roofline, stats
from fastkernels.measure.ceilings import ceilings
from fastkernels.measure.chain import ChainPlan, of_ranks, of_trial
from fastkernels.records import Case, Contract, Failure, TensorSpec
from fastkernels.registry.schema import TaskEntry
from fastkernels.runner.kernel_trial import claim_checks, oom_blame, reproduction
from fastkernels.runner.kernel_trial.bench import Bench, Outcome
from fastkernels.runner.kernel_trial.block_runner import BlockRunner
from fastkernels.runner.kernel_trial.blocks import Blocks, durations_ns
from fastkernels.runner.kernel_trial.claim_checks import Slack
from fastkernels.runner.kernel_trial.referee import Referee
from fastkernels.runner.kernel_trial.rows import integrity
from fastkernels.runner.kernel_trial.sampling import Sampled, Sampling, where_late
from fastkernels.runner.worker.reading import Reading
from fastkernels.runner.worker.worker_handle import WorkerHandle

# What a claim may hide at most (claim_checks.py), by contract on a GPU. On a held device windows of 406
# honest implementations and self-tests in `graph` were at most 2.1 us longer than their claims explained, and
# of 86 in `eager` 0.5 (benchmarks/h100/windows.json); of groups there are no such figures.
_HELD = Slack(2_500, share=0.01)
SLACK = {
    "host": Slack(20_000),  # the host's own work is timed: its calls are asked for, so the copies lie in it
    "collective": Slack(5_000),
    "eager": _HELD,
    "graph": _HELD,
}
# On a CPU the window holds copies and messages, of a group 0.9 to 1.9 ms in all, and after an honest call
# with more working memory up to 48 % more (70 trials, docs/record). On a busy machine whose call takes longer
# loses its core more often before it answers: for up to what it claims to lose, which makes no win.
SLACK_ON_CPU = Slack(20_000, colder=0.5, slower=1.0)

# Verdicts that one call with its inputs deserves.
_OF_CALLS = ("WRONG", "CRASHED", "COMPILE_ERROR", "TIMEOUT", "OOM")


class Trial:
    """`run` gives the Outcome; baseline and candidate problems are verdicts in it, never exceptions."""

    def __init__(
        self,
        bench: Bench,
        entry: TaskEntry,
        case: Case,
        handles: tuple[WorkerHandle, WorkerHandle, WorkerHandle],
        layers: Sequence[str],
        implementations: dict[str, str],
        base_layers: Sequence[str] = (),
    ) -> None:
        """`handles`: baseline A, candidate C, baseline A'. `layers` and `implementations` are the
        candidate's; `base_layers` lie over the baseline in A and A'."""
        self._bench, self._entry, self._case = bench, entry, case
        specs = own(trial_specs(case, build_module(bench.baseline, case, "meta")))
        self._referee = Referee(entry, case, specs, bench.baseline, bench.device, bench.rng)
        self._outcome = Outcome(Verdict.passed(), contract=bench.contract_of(case))
        alone = case.ranks == 1 or bench.device == "cuda"
        self._checks_under: Contract = "host" if alone else "collective"
        self._held: Reading | None = None  # whose results the candidate's process holds
        self._runner = BlockRunner(
            bench,
            case,
            specs,
            self._referee.mutable,
            handles,
            layers,
            implementations,
            self._outcome,
            self._chain(specs),
            base_layers,
        )

    def run(self) -> Outcome:
        outcome = self._outcome
        try:
            outcome.verdict = self._judge()
        except (MachineError, MemoryError, RuntimeError) as error:
            if (verdict := oom_blame.unjudged(error)) is None:
                raise
            outcome.verdict = verdict
        else:
            self._explain()
        finally:
            outcome.verdict = self._undisturbed() or outcome.verdict
            if self._bench.device == "cuda":
                outcome.verdict = self._settled(outcome.verdict)
            self._runner.close()
        outcome.worst, outcome.checked = self._referee.worst, self._referee.checked
        outcome.notes += self._referee.notes
        return outcome

    def _explain(self) -> None:
        """On which inputs a call failed; and these, where somebody wants them."""
        outcome = self._outcome
        if outcome.verdict.status not in _OF_CALLS:
            return
        outcome.verdict = outcome.verdict.noted(distribution=self._runner.distribution)
        if self._bench.keeps_evidence and reproduction.why_not(self._entry, self._case) is None:
            try:
                outcome.evidence = self._referee.evidence(self._runner.inputs, self._runner.strided)
            except MachineError as error:
                outcome.notes += (f"{self._case.task} {self._case.id}: not reproduced: {error}",)

    def _judge(self) -> Verdict:
        if verdict := self._runner.open():
            return verdict
        if verdict := self._correct():
            return verdict
        if verdict := self._drawn():
            return verdict
        if not self._case.timed:
            return self._referee.final() or Verdict.passed()
        return self._linked() or self._time()

    def _linked(self) -> Verdict | None:
        """What is timed on a device that the judge holds has links of its own. Those that were asked to hold
        results are gone then."""
        contract = self._outcome.contract
        if contract == "host" or not self._runner.is_held:
            return None
        self._held = None
        return self._runner.capture() if contract == "graph" else self._runner.settle()

    def _undisturbed(self) -> Verdict | None:
        """What is wrong where a baseline process was rescheduled, or did not run in its turns alone; another
        takes its place then."""
        found = None
        for handle in (self._runner.a, self._runner.a2):
            worker = handle.worker
            if not worker.alive:
                continue
            verdict = claim_checks.moved(handle.standing, worker.standing())
            if verdict := verdict or claim_checks.disturbed(worker.meddled, worker.restless):
                worker.close()
                found = verdict
        return found

    def _settled(self, verdict: Verdict) -> Verdict:
        """By who holds the memory that somebody lacked."""
        candidate, *baselines = (
            handle.worker for handle in (self._runner.c, self._runner.a, self._runner.a2)
        )
        settled = oom_blame.settled(verdict, candidate, baselines, range(self._case.ranks))
        self._outcome.died |= settled.status == "OOM" and not candidate.alive
        return settled

    def _chain(self, specs: Mapping[str, TensorSpec]) -> ChainPlan:
        """One link where nothing will be captured, or one for each rank."""
        if self._outcome.contract != "graph" or not self._case.timed:
            return of_ranks(self._case.ranks)
        floor_s = roofline.floor_s(self._work, ceilings(self._bench.device))
        return of_trial(specs, floor_s, self._work.read_bytes)

    @cached_property
    def _work(self) -> roofline.Work:
        return roofline.work(self._case, self._bench.baseline)

    # ------------------------------------------------------------ correctness

    def _correct(self) -> Verdict | None:
        """Every distribution and layout of the inputs against the oracle, and what repetition shows."""
        judged: tuple[Reading, Reading] | None = None
        layouts = range(len(self._runner.layouts))
        for (number, distribution), _ in itertools.product(enumerate(DISTRIBUTIONS), layouts):
            # Other lengths of requests come at old addresses and at new ones.
            self._runner.refill(distribution, other_lengths=number % 4 >= 2)
            found = self._runner.block(
                [self._runner.a, self._runner.c],
                self._checks_under,
                fresh=number % 2 == 1,
                parameters=True,
                echo_parameters=True,
            )
            if isinstance(found, Verdict):
                return found
            ours, theirs = found[id(self._runner.c)], found[id(self._runner.a)]
            if verdict := self._referee.judge(self._runner.inputs, ours, theirs, distribution, oracle_link=0):
                return verdict
            judged = ours, theirs
        assert judged is not None
        return self._repeat(DISTRIBUTIONS[-1], *judged) or self._waiting()

    def _waiting(self) -> Verdict | None:
        """Every rank of a group waits for each of its peers, which in a model come when they come."""
        for rank in range(self._case.ranks) if self._case.ranks > 1 else ():
            self._runner.refill("normal")
            if verdict := self._checked(late=rank):
                return verdict
        return None

    def _drawn(self) -> Verdict | None:
        """A sampler's draws until they can tell a wrong distribution from chance; then such in which all but
        the seeds, or the positions, stays as it was."""
        while self._referee.wants_draws:
            if verdict := self._draw():
                return verdict
        for name, calls in self._referee.changes_alone.items():
            with self._referee.apart():
                if verdict := next(filter(None, (self._draw(step=name) for _ in range(calls))), None):
                    return verdict
                if verdict := self._referee.final():
                    return verdict.explained(f"where only {name} changes from call to call")
        return None

    def _draw(self, step: str | None = None) -> Verdict | None:
        if step is None:
            self._runner.refill("normal")
        else:
            self._runner.step(step)
        return self._checked()

    def _checked(self, late: int | None = None) -> Verdict | None:
        """One call on the inputs that are there, ordinary ones, against the baseline's. `late`: a rank."""
        found = self._runner.block(
            [self._runner.a, self._runner.c],
            self._checks_under,
            fresh=False,
            parameters=True,
            echo_parameters=False,
            late=late,
        )
        if isinstance(found, Verdict):
            return found
        ours, theirs = found[id(self._runner.c)], found[id(self._runner.a)]
        verdict = self._referee.judge(self._runner.inputs, ours, theirs, "normal", oracle_link=None)
        return verdict if verdict is None or late is None else verdict.explained(where_late(late))

    def _repeat(self, distribution: str, right: Reading, baseline: Reading) -> Verdict | None:
        """The same inputs again must give the same as when they were judged (`right`); and results must
        survive a later call on other inputs."""
        for call in ("again", "elsewhere", "other"):
            if call == "other":
                self._runner.refill(distribution)
            found = self._runner.block(
                [self._runner.c],
                self._checks_under,
                fresh=call == "elsewhere",
                parameters=call == "other",
                echo_parameters=True,
            )
            if isinstance(found, Verdict):
                return found
            reading = found[id(self._runner.c)]
            if verdict := (
                self._referee.described(reading, baseline)
                or self._referee.unchanged(self._runner.inputs, reading.echo)
            ):
                return verdict
            if call == "other":
                continue
            if verdict := self._referee.repeatable(right.outputs, reading.outputs, distribution):
                return verdict
            self._held = reading
        return self._survived()

    def _survived(self) -> Verdict | None:
        """Results belong to the caller, who may keep them for any number of calls."""
        assert self._held is not None
        later = self._runner.again(self._held)
        return later if isinstance(later, Verdict) else self._referee.survived(self._held.outputs, later)

    # ------------------------------------------------------------ time

    def _time(self) -> Verdict:
        sampled = Sampling(self._bench, self._runner, self._referee, self._outcome).run()
        if isinstance(sampled, Verdict):
            return sampled
        if self._held is not None and (verdict := self._survived()):
            return verdict
        slack = SLACK[self._outcome.contract] if self._runner.is_held else SLACK_ON_CPU
        idle_check = self._runner.idle_check
        self._outcome.integrity = integrity(sampled, slack, idle_check.looks if idle_check else None)
        if verdict := self._broken_rule(sampled):
            return verdict
        # A machine too busy to tell the ratio is too busy to accuse anybody by his times; neither wins.
        if sampled.decision == "unstable":
            return self._unstable(sampled, self._unclaimed(sampled, slack))
        return self._refused(sampled, slack) or self._conclude(sampled)

    def _broken_rule(self, sampled: Sampled) -> Verdict | None:
        """Told before what only cannot be: both may be seen of one candidate."""
        if verdict := claim_checks.restless(self._runner.c.worker.restless):
            return verdict
        return claim_checks.fetched(sampled.half)

    def _refused(self, sampled: Sampled, slack: Slack) -> Verdict | None:
        """Why its ratio is not said, however narrow the interval is."""
        idle_check = self._runner.idle_check
        disturbed = idle_check.disturbed if idle_check is not None else None
        if message := disturbed or self._without_ratio(sampled.blocks):
            return Verdict.failed("UNSTABLE", Failure(message=message))
        if verdict := self._untrue(sampled, slack) or self._referee.final():
            return verdict
        candidate_s = float(np.median(durations_ns(sampled.blocks.c))) / 1e9
        problem = roofline.implausible(self._work, ceilings(self._bench.device), candidate_s)
        return Verdict.failed("IMPLAUSIBLE", Failure(message=problem)) if problem else None

    def _unclaimed(self, sampled: Sampled, slack: Slack) -> Speedup | None:
        """What is known of an unstable ratio, where it only is not known well enough."""
        enough = len(sampled.blocks.c) >= stats.MIN_SAMPLES
        return self._speedup(sampled) if enough and self._refused(sampled, slack) is None else None

    def _untrue(self, sampled: Sampled, slack: Slack) -> Verdict | None:
        """Whether the candidate's own account of its time can be true, and a win by it be shown."""
        blocks = sampled.blocks
        if verdict := claim_checks.shared_work(sampled.alone, blocks):
            return verdict
        told = blocks.c, (blocks.a, blocks.a2), slack
        if verdict := claim_checks.understated(*told):
            return verdict
        if not self._runner.is_held:  # messages are in the windows, which differ by as much as is won
            return None
        # No number, rather than one that may be time which nobody measured.
        message = claim_checks.unproven(*told)
        return Verdict.failed("UNSTABLE", Failure(message=message)) if message else None

    def _unstable(self, sampled: Sampled, unclaimed: Speedup | None = None) -> Verdict:
        blocks, interval = sampled.blocks, sampled.interval
        width = (
            f"the interval is still {100 * interval.half_width:.1f} % wide ({_about(blocks)})"
            if interval.n
            else "no usable sample"
        )
        message = (
            f"{len(blocks.c)} samples, {blocks.dropped} dropped: {width}. Is something else running here? "
            "Try a larger --budget"
        )
        return Verdict(status="UNSTABLE", failure=Failure(message=message), unclaimed=unclaimed)

    def _without_ratio(self, blocks: Blocks) -> str | None:
        """Why a narrow interval says nothing all the same."""
        if blocks.baseline_waits:
            return (
                "the baseline waits for the device in its call: the host's work is in its time, and differs "
                "from process to process for as long as they live"
            )
        noise_pct = stats.noise_pct([blocks.identical()])
        if too_noisy(self._outcome.contract, noise_pct):
            return (
                f"two processes with the baseline's code differ by up to {noise_pct:.1f} % ({_about(blocks)})"
            )
        return None

    def _conclude(self, sampled: Sampled) -> Verdict:
        speedup = self._speedup(sampled)
        limits = ceilings(self._bench.device)
        self._outcome.roofline_pct = roofline.roofline_pct(self._work, limits, speedup.candidate_us / 1e6)
        clocks = [r.clock_mhz for r in sampled.blocks.c if r.clock_mhz is not None]
        self._outcome.clock_mhz = int(np.median(clocks)) if clocks else None
        return Verdict.passed(speedup)

    def _speedup(self, sampled: Sampled) -> Speedup:
        outcome, blocks, interval = self._outcome, sampled.blocks, sampled.interval
        theirs, ours = (stats.summarize(ns / 1e3) for ns in (blocks.baseline_ns(), durations_ns(blocks.c)))
        return Speedup(
            contract=outcome.contract,
            ratio=interval.median,
            low=interval.low,
            high=interval.high,
            baseline_us=theirs.median,
            candidate_us=ours.median,
            baseline_p20_p80_us=(theirs.p20, theirs.p80),
            candidate_p20_p80_us=(ours.p20, ours.p80),
            noise_pct=stats.noise_pct([blocks.identical()]),
            samples=len(blocks.c),
            dropped=blocks.dropped,
            links=outcome.links,
            waits=blocks.candidate_waits,
        )


def _about(blocks: Blocks) -> str:
    """Times that are no ratio, since they are too unstable for one."""
    ours, theirs = (np.median(ns) / 1e3 for ns in (durations_ns(blocks.c), blocks.baseline_ns()))
    return f"about {ours:.4g} us, the baseline {theirs:.4g}"
