"""A whole-model trial: baseline and candidate engines side by side, from the same weights, on the same fresh
prompts.

The judge draws every prompt, keeps the clock, and alternates the sides A B B A. Three questions, in this
order:

    is the candidate inside?    sites replaced, their calls, time saved there against the gain (Amdahl)
    is it faster?               the workloads, in alternating rounds
    is it right?                the same samples on both sides, and answers of its timed runs checked by the
                                baseline; against three noise runs of the baseline

What a model is asked, and how two answers are compared, is the part of its Answers.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastkernels.errors import (
    BaselineError,
    FastKernelsError,
    FileFormatError,
    MachineError,
    NotFoundError,
    UsageError,
    WeightsError,
)
from fastkernels.layout import shown
from fastkernels.loader.candidates import CandidateSet
from fastkernels.measure.stats import few_interval, paired_ratios
from fastkernels.progress import Progress
from fastkernels.records import Failure, ModelResult, Size, Swap, UnfinishedModel, WorkloadResult
from fastkernels.registry.schema import Architecture
from fastkernels.registry.workloads import Workload
from fastkernels.runner.inside import flags
from fastkernels.runner.models.answers import Answers
from fastkernels.runner.models.replies import Proof, Sites, Stats, garbled, read
from fastkernels.runner.models.sides import Side, SideFailure, SideHandle, Sides
from fastkernels.runner.source_rules import from_source
from fastkernels.score import calibrate
from fastkernels.score.timed_tokens import MOST_REPEATED

LEAST_PREDICTED = 0.03  # a smaller predicted gain is noise of the proof passes, and so would its transfer be
PROOF_REPEATS = 3  # eager proof passes of each side, alternating
ROUND_HALF_WIDTH = 0.01  # a workload's ratio is known well enough within 1 %
LATENCY_ROUNDS = 6  # at least: a latency workload takes about a second
TURN_RUNS = 3  # of one, where every turn loads a model for half a minute: their median is the turn's
ROUND_S = 0.5  # at least, of a round that starts both processes anew, which takes as long
UNUSABLE_EXTENSION = 2  # times the extra time, where the interval is still too wide for any claim
# Names of what a worker raises for a model that its user named.
USERS_ERRORS = {kind.__name__ for kind in (UsageError, NotFoundError, FileFormatError, WeightsError)}


@dataclass
class ModelTrial:
    """One architecture: `run()` gives its ModelResult. A candidate's failure is part of the result."""

    architecture: Architecture
    model: str  # what LLM() loads: an architecture id, a folder, a Hugging Face id
    config: str
    size: Size
    answers: Answers
    workloads: Sequence[Workload]
    candidates: CandidateSet | None  # None: self-test, the baseline against itself
    sides: Sides
    rounds: int
    extra_s: float  # rounds go on this long until the ratio is known
    restarts: bool = False  # each round has two processes of its own: the interval holds their differences
    show: Callable[[Progress], None] = lambda step: None  # its own steps
    _done: int = 0  # of its steps
    _notes: list[str] = field(default_factory=list)
    _stats: dict[Side, Stats] = field(default_factory=dict)  # as of the last timed run
    _prove: Callable[[SideHandle], Proof] | None = (
        None  # where there are sites; first of all in every process
    )
    _seconds: dict[str, dict[str, list[float]]] = field(
        default_factory=dict
    )  # of a workload and side, so far

    @property
    def steps(self) -> int:
        """The proof, the rounds that are made at least, the comparison, and the noise runs."""
        rounds = sum(map(self._least_rounds, self.workloads))
        return 1 + rounds + 1 + len(self.answers.noise_changes)

    def _tell(self, doing: str) -> None:
        self.show(Progress(self._done, self.steps, doing))

    def run(self) -> ModelResult:
        settled = from_source(self.candidates, self.architecture.task) if self.candidates else None
        if settled is not None:
            assert settled.failure is not None
            message = f"{settled.label}: {settled.failure.message}"
            return self._failed(settled.failure.model_copy(update={"message": message}))
        try:
            swap = self._swap()
            self._done += 1
            results, audits = self._measure()
            compared = self.answers.compare(self.sides, self._tell)
            self._done += 1
        except SideFailure as failure:
            if failure.side == "baseline":
                raise self._of_the_baseline(failure) from failure
            return self._failed(failure.failure)
        noise = self._noise_runs()
        self._require_scale(noise, compared.ruin)
        audited = [tuple(self.answers.audited(found)) for found in audits]
        return calibrate.model_result(
            model=self.model,
            category=self.architecture.category,
            size=self.size,
            config=self.config,
            workloads=[r.model_copy(update={"audited_d": d}) for r, d in zip(results, audited, strict=True)],
            d=[*compared.d, *itertools.chain.from_iterable(audited)],
            noise_d=noise,
            ruin_d=compared.ruin,
            kl=compared.kl,
            swap=swap,
            self_test=self.candidates is None,
            notes=self._notes,
        )

    def unfinished(self) -> list[UnfinishedModel]:
        """Where `run` was left by an exception: the rounds until then; none where there is no whole one."""
        timed = []
        for workload in self.workloads:
            seconds = self._seconds.get(workload.name, {})
            if whole := min(map(len, seconds.values()), default=0):
                timed.append(self._result(workload, {side: s[:whole] for side, s in seconds.items()}))
        found = UnfinishedModel(model=self.model, config=self.config, size=self.size, workloads=tuple(timed))
        return [found] if timed else []

    # ------------------------------------------------------------ is the candidate inside?

    def _swap(self) -> Swap:
        """Sites, calls and the Amdahl account; without a site there is nothing to account for."""
        files = dict(self.candidates.files) if self.candidates else {}
        sites = read(self._loaded(), Sites, "sites").sites
        unused = tuple(sorted(set(files) - set(sites)))
        if not sites:
            return Swap(sites=0, calls=0, unused=unused)
        inputs = self.answers.proof()

        def prove(handle: SideHandle) -> Proof:
            with self.answers.given(inputs) as given:
                proof = read(handle, Proof, "proof", sites=sites, **given)
            if handle.side == "candidate":
                self.sides.note_put_back(proof.put_back)
            return proof

        self._prove = prove
        runs: dict[str, list[Proof]] = {"baseline": [], "candidate": []}
        for turn in range(2 * PROOF_REPEATS):
            side = ("baseline", "candidate", "candidate", "baseline")[turn % 4]
            self._tell(f"swap proof, {side}")
            handle = self._warm(side, "swap proof", prove)
            runs[side].append(prove(handle))
            if set(runs[side][-1].calls) != set(sites):
                raise garbled(handle, "proof", "calls of other sites than were asked for")
        calls = runs["candidate"][-1].calls
        if not any(calls.values()):
            raise SideFailure(
                "candidate", Failure(message="the model holds candidate modules but never calls them")
            )
        return Swap(
            sites=sum(map(len, sites.values())),
            calls=sum(calls.values()),
            unused=unused,
            by_task={task: (len(names), calls[task]) for task, names in sites.items()},
            shadowed=self.candidates.shadowed() if self.candidates else (),
            **amdahl(runs),
        )

    def _loaded(self) -> SideHandle:
        """The candidate. Where it does not load, the baseline is tried too: a model that neither loads (its
        weights are missing) is no candidate's failure."""
        try:
            return self.sides.use("candidate")
        except SideFailure:
            self.sides.use("baseline")
            raise

    # ------------------------------------------------------------ is it faster?

    def _measure(self) -> tuple[list[WorkloadResult], list[Any]]:
        """Of each workload its result, and what an audit of its timed answers has found."""
        results, audits = [], []
        for workload in self.workloads:
            seconds = self._seconds[workload.name] = {"baseline": [], "candidate": []}
            planned = self._done + self._least_rounds(workload)
            runs = self._round(workload, seconds)
            begin = time.perf_counter()  # of the extra time: behind the first round with its warm-ups
            while not self._enough(workload, seconds, time.perf_counter() - begin):
                self._done = min(self._done + 1, planned - 1)
                runs += self._round(workload, seconds)
            self._done = planned
            self._look_for_repetition(workload, self.answers.repeated(runs))
            # Of every round: a speed-up is a median, and who guesses in most of them would have some chance.
            audits.append(self.answers.audit(self.sides.use("baseline"), runs))
            results.append(self._result(workload, seconds))
        self._notes += passed_over({side: stats.passed_over for side, stats in self._stats.items()})
        return results, audits

    def _look_for_repetition(self, workload: Workload, repeated: float) -> None:
        if repeated > MOST_REPEATED:
            self._notes.append(
                f"{workload.name}: {100 * repeated:.0f} % of the baseline's tokens repeat the last ones, and "
                "whoever does so without a model is right there"
            )

    def _warm(self, side: Side, what: str, warm_up: Callable[[SideHandle], object]) -> SideHandle:
        """The side, in a process that has done `what` before. One that is started for its turn has not: its
        kernels are loaded and its graphs captured when they are first needed."""
        handle = self.sides.use(side)
        if what not in handle.warmed:
            self._tell(f"{what}, warm-up, {side}")
            warm_up(handle)
            handle.warmed.add(what)
        return handle

    def _round(self, workload: Workload, seconds: dict[str, list[float]]) -> list[Any]:
        """Both sides on the same fresh inputs, A B and B A in turn; of each run what an audit may ask for."""
        number = len(seconds["baseline"]) + 1
        order: tuple[Side, Side] = ("baseline", "candidate") if number % 2 else ("candidate", "baseline")
        in_turn = self._turns if self.sides.exclusive else self._side_by_side
        inputs: list[Any] = []
        runs: dict[Side, list[tuple[float, Any]]] = {"baseline": [], "candidate": []}
        for side, given in in_turn(workload, order):
            handle = self._ready(side, workload)
            self._tell(f"{workload.name}, round {number}, {side}")
            if side == order[0]:
                inputs.append(given)
            runs[side].append(self.answers.timed(handle, given, workload))
            # At once: the process may end with its turn.
            self._stats[side] = read(handle, Stats, "stats")
        for side, of_side in runs.items():
            seconds[side].append(statistics.median(took_s for took_s, _ in of_side))
        self._compare_settings()
        answers = ([answer for _, answer in runs[side]] for side in ("baseline", "candidate"))
        return [self.answers.kept(*run) for run in zip(inputs, *answers, strict=True)]

    def _turns(self, workload: Workload, order: Sequence[Side]) -> Iterator[tuple[Side, Any]]:
        """Whose run on which inputs comes next, where each turn loads a model."""
        count = TURN_RUNS if workload.kind == "latency" else 1
        yield from itertools.product(order, [self.answers.inputs(workload) for _ in range(count)])

    def _side_by_side(self, workload: Workload, order: Sequence[Side]) -> Iterator[tuple[Side, Any]]:
        """The same where both sides live; of processes that were started for this round A B B A at least."""
        if self.restarts:
            self.sides.close()
        for side in order:
            self._ready(side, workload)
        begin = time.perf_counter()
        while True:
            for one, other in (order, order[::-1]):
                given = self.answers.inputs(workload)
                yield one, given
                yield other, given
                if not self.restarts:
                    return
            if time.perf_counter() - begin >= ROUND_S:
                return

    def _ready(self, side: Side, workload: Workload) -> SideHandle:
        if self._prove is not None:
            self._warm(side, "swap proof", self._prove)
        return self._warm(side, workload.name, lambda handle: self.answers.warm_up(handle, workload))

    def _compare_settings(self) -> None:
        """SideFailure where a candidate has set what holds for the whole process."""
        theirs, ours = self._stats["baseline"].settings, self._stats["candidate"].settings
        if changed := flags.differences(ours, theirs):
            message = (
                f"TAMPERED(global-state): {changed}: the whole engine runs with what a candidate has set. "
                "What imports and the first, eager, pass set is put back, and not what later calls set"
            )
            raise SideFailure("candidate", Failure(message=message))

    def _enough(self, workload: Workload, seconds: dict[str, list[float]], elapsed_s: float) -> bool:
        """At least the asked rounds; then until the interval is narrow or the extra time is spent."""
        if len(seconds["baseline"]) < self._least_rounds(workload):
            return False
        found = self._result(workload, seconds)
        extra_s = self.extra_s * (UNUSABLE_EXTENSION if found.unstable else 1)
        return found.half_width <= ROUND_HALF_WIDTH or elapsed_s > extra_s

    def _least_rounds(self, workload: Workload) -> int:
        once = workload.kind == "throughput" or self.sides.exclusive
        return self.rounds if once else max(self.rounds, LATENCY_ROUNDS)

    def _result(self, workload: Workload, seconds: dict[str, list[float]]) -> WorkloadResult:
        amount = self.answers.amount(workload)
        return _workload_result(workload, amount, seconds["baseline"], seconds["candidate"])

    # ------------------------------------------------------------ is it right?

    def _noise_runs(self) -> list[list[float]]:
        """d of the baseline against itself in fresh processes, each with benign other numerics."""
        self.sides.close()
        runs = []
        changes = self.answers.noise_changes
        for number, change in enumerate(changes, 1):
            self._tell(f"noise run {number} of {len(changes)}")
            try:
                with self.sides.fresh(**change) as worker:
                    runs.append(self.answers.again(worker))
                self._done += 1
            except SideFailure as failure:
                raise BaselineError(
                    f"{self.model}: a noise run failed: {failure.failure.message}"
                ) from failure
        return runs

    def _require_scale(self, noise_d: list[list[float]], ruin_d: list[float]) -> None:
        """BaselineError where unrelated answers lie within the baseline's noise: right and wrong would look
        alike, and no candidate is to blame."""
        g, f = calibrate.noise_floor(noise_d), calibrate.ruin_point(ruin_d)
        if f <= g:
            raise BaselineError(
                f"{self.model}: noise cannot be told from ruin: with these weights the baseline differs from "
                f"itself by {g:.3g} (0.95 quantile), and half of what unrelated answers differ by is {f:.3g} "
                "(median). Another --seed draws other weights; a folder with real ones can be evaluated, too"
            )

    def _of_the_baseline(self, failure: SideFailure) -> FastKernelsError:
        """Whoever named a model that cannot be loaded, or a machine too small for it, is told just that."""
        kind, said = failure.error or ("", "")
        if kind in USERS_ERRORS:
            return UsageError(f"{self.model}: {said}")
        if kind == MachineError.__name__:
            return MachineError(f"{self.model}: {said}")
        return BaselineError(f"{self.model}: the baseline failed: {failure.failure.message}")

    def _failed(self, failure: Failure) -> ModelResult:
        return calibrate.failed_model(
            model=self.model,
            category=self.architecture.category,
            size=self.size,
            config=self.config,
            failure=failure.model_copy(update={"file": shown(failure.file) if failure.file else None}),
            notes=self._notes,
        )


def _workload_result(
    workload: Workload, amount: float, baseline_s: list[float], candidate_s: list[float]
) -> WorkloadResult:
    ratio = few_interval(paired_ratios(baseline_s, candidate_s))
    throughput = workload.kind == "throughput"
    return WorkloadResult(
        name=workload.name,
        kind=workload.kind,
        unit=workload.unit,
        baseline=tuple(amount / s if throughput else s / amount for s in baseline_s),
        candidate=tuple(amount / s if throughput else s / amount for s in candidate_s),
        throughput_ratio=ratio.median if throughput else None,
        latency_ratio=None if throughput else ratio.median,
        ratio_ci=(ratio.low, ratio.high) if len(baseline_s) > 1 else None,
    )


def passed_over(of_sides: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Of each implementation that a call was not given to one line: why, with the calls of each side. Taken
    from `kernel:implementation: why` and its calls, of each side."""
    reasons: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for side, counts in of_sides.items():
        for what, count in counts.items():
            name, _, why = what.partition(": ")
            reasons[name].setdefault(why, []).append(f"{side} {count}")
    return [
        f"{name} passed over: " + "; ".join(f"{why} ({', '.join(calls)} calls)" for why, calls in of.items())
        for name, of in reasons.items()
    ]


def amdahl(runs: dict[str, list[Proof]]) -> dict[str, float | None]:
    """Predicted and measured speed-up of the eager run: T_b / (T_b - (S_b - S_c)) against T_b / T_c."""
    total_b, total_c, site_b, site_c = (
        statistics.median(getattr(run, key) for run in runs[side])
        for key in ("total_s", "site_s")
        for side in ("baseline", "candidate")
    )
    predicted, measured = total_b / (total_b - (site_b - site_c)), total_b / total_c
    transfer = (measured - 1) / (predicted - 1) if abs(predicted - 1) >= LEAST_PREDICTED else None
    return {"predicted": predicted, "measured": measured, "transfer": transfer}
