"""`run_kernels`: every candidate on every case that it reaches, one worker process for each, against two of
the baseline.

report = run_kernels(KernelsRequest(targets=("rms_norm",), candidates=("examples/candidates",)))
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fastkernels.errors import BaselineError
from fastkernels.judge.summary import summarize
from fastkernels.judge.verdict import Verdict, is_failure
from fastkernels.loader import golden
from fastkernels.loader.authored import kernel_names
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.absent import absent
from fastkernels.measure.clocks import SmClock
from fastkernels.measure.environment import environment
from fastkernels.measure.sole import SoleUse
from fastkernels.progress import Progress
from fastkernels.records import Failure, KernelReport, KernelRow
from fastkernels.runner.inside import compile_tracer
from fastkernels.runner.kernel_trial import attribution
from fastkernels.runner.kernel_trial.bench import Bench
from fastkernels.runner.kernel_trial.compile_check import compile_columns
from fastkernels.runner.kernel_trial.reproduction import Reproductions
from fastkernels.runner.kernel_trial.request import (
    Job,
    KernelsRequest,
    Work,
    candidate_sets,
    judged_files,
    out_of_reach,
    plan,
)
from fastkernels.runner.kernel_trial.rows import row, unavailable_row
from fastkernels.runner.kernel_trial.trial import Outcome, Trial
from fastkernels.runner.kernel_trial.worker_set import Unimportable, WorkerSet
from fastkernels.runner.sandbox import isolation
from fastkernels.runner.worker.resources import default_threads
from fastkernels.runner.worker.worker_calls import Timeouts

# A candidate that was ended this often in one task, or had no baseline so often, is not tried on the rest of
# its cases.
MOST_DEATHS = 2
# One failed import is the same failure for every case.
_FINAL = ("IMPORT_ERROR",)


Report = Callable[[Progress], None]


class _FirstFailure(Exception):
    """A trial failed, and the request wants none behind it."""


def run_kernels(
    request: KernelsRequest,
    progress: Report = lambda progress: None,
    jobs: list[Job] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> KernelReport:
    """Judge what the request names, or `jobs` that the caller has planned itself. After Ctrl-C the rows so
    far, `complete=False`. What the baseline fails in later than at once is a row, INVALID_BASELINE. `say`
    hears what is known before anything runs.

    UsageError: nothing to judge. MachineError: the device is not there. BaselineError: there is no row yet.
    """
    run = _Run(request.resolved(), progress, jobs, say)
    return run.report()


@dataclass
class _Run:
    request: KernelsRequest
    progress: Report
    jobs: list[Job] | None = None
    say: Callable[[str], None] = lambda text: None
    rows: list[KernelRow] = field(default_factory=list)
    shadowed: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    complete: bool = True
    total: int = 0  # trials
    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # `measuring_s`, ...
    _deaths: defaultdict[tuple[str, str], list[Verdict]] = field(default_factory=lambda: defaultdict(list))
    _unimportable: dict[str, Failure] = field(default_factory=dict)  # of whole revisions, by job
    _reproductions: Reproductions | None = None
    levels: tuple[str, ...] = isolation.ALWAYS
    _told: str = ""  # the step that goes on

    def report(self) -> KernelReport:
        request = self.request
        assert request.device is not None
        begin = time.monotonic()
        jobs = plan(request) if self.jobs is None else self.jobs
        judged = judged_files(request) if self.jobs is None else ()
        if request.reproduce is not None:
            self._reproductions = Reproductions(Path(request.reproduce), request.device)
        if self.jobs is None:
            for line in out_of_reach(candidate_sets(request), {job.name for job in jobs}):
                self.say(line)
                self.notes[line] = None
        if request.golden is not None:
            self.notes[f"captured routing: {golden.read(request.golden).capture.summary}"] = None
        # Started now, so that the report says when; the isolation reached is filled in at the end.
        machine = environment(request.device)
        try:
            with (
                isolation.HiddenMemory() as memory,
                _equal_threads() as threads,
                _caches() as caches,
                self._worker_set(jobs, threads, caches, memory) as worker_set,
            ):
                try:
                    self._all(jobs, worker_set, self._bench(jobs))
                finally:
                    self.levels += worker_set.levels
                    for reason in worker_set.stays_root:
                        self.notes[f"candidates ran as root: {reason}"] = None
        except (KeyboardInterrupt, _FirstFailure):
            self.complete = False
        wall_s = time.monotonic() - begin
        if self._reproductions is not None:
            self.notes.update(dict.fromkeys(self._reproductions.told(self.rows)))
        return KernelReport(
            schema=1,
            environment=machine.model_copy(update={"isolation": tuple(dict.fromkeys(self.levels))}),
            request=request.model_dump(mode="json"),
            rows=tuple(r.model_copy(update={"absent": absent(r.task, request.device)}) for r in self.rows),
            candidates=judged,
            shadowed=tuple(dict.fromkeys(self.shadowed)),
            notes=tuple(self.notes),
            summary=summarize(self.rows, wall_s, **self.spent_s),
            complete=self.complete,
        )

    def _bench(self, jobs: list[Job]) -> Bench:
        """Before any process of the run is started."""
        request = self.request
        assert request.device
        assert request.contract
        assert request.budget_s
        most_ranks = max((work.case.ranks for job in jobs for work in job.works), default=1)
        gpus = min(most_ranks, torch.cuda.device_count()) if request.device == "cuda" else 0
        return Bench(
            device=request.device,
            contract=request.contract,
            budget_s=request.budget_s,
            rng=random.Random(request.seed),
            baseline=Overlay.over_baseline(),
            sole_use=SoleUse(range(gpus)) if gpus else None,
            tell=self._tell_more,
            keeps_evidence=request.reproduce is not None,
        )

    def _worker_set(
        self, jobs: list[Job], threads: int, caches: Path, memory: isolation.HiddenMemory
    ) -> WorkerSet:
        device = self.request.device
        assert device is not None
        limits = Timeouts.of(device, self.request.timeout_s)
        libraries = compile_tracer.LIBRARIES if any(map(self._is_traced, jobs)) else ()
        clock = SmClock(device)
        if clock.problem:
            self.notes[clock.problem] = None
        return WorkerSet(device, threads, limits, clock, caches, memory, libraries)

    def _is_traced(self, job: Job) -> bool:
        return job.is_candidate and self.request.compile_check

    def _all(self, jobs: list[Job], worker_set: WorkerSet, bench: Bench) -> None:
        self.total = sum(len(job.works) for job in jobs)
        works = [work for job in jobs for work in job.works]
        self.notes.update((refusal, None) for work in works for refusal in work.entry.refusals(work.case.id))
        for job in jobs:
            self.shadowed += job.shadowed
            for entry, reason in job.unavailable:
                self.rows.append(unavailable_row(job, entry, reason, bench.contract))
            for index, work in enumerate(job.works):
                self._tell(f"{job.name} · {work.entry.id} {work.case.id}")
                self._one(job, work, worker_set, bench)
                if self.request.fail_fast and is_failure(self.rows[-1].verdict):
                    raise _FirstFailure
                if self._last_of_variant(job, index):
                    self._look(job, work, worker_set)
            if job.is_candidate and self.request.attribution and self.request.device == "cuda":
                self._attribute(job, worker_set)
            worker_set.dismiss_candidate()
        if worker_set.overhead_ns:
            overhead_us = worker_set.overhead_ns / 1e3
            self.notes[
                f"{overhead_us:.2f} us, which two events read for nothing, are taken off every duration"
            ] = None
        self.progress(Progress(self.total, self.total, "done"))

    @contextlib.contextmanager
    def _spending(self, on: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spent_s[f"{on}_s"] += time.monotonic() - begin

    @property
    def _trials(self) -> list[KernelRow]:
        return [row for row in self.rows if row.case != "*"]

    def _one(self, job: Job, work: Work, worker_set: WorkerSet, bench: Bench) -> None:
        contract = bench.contract_of(work.case)
        settled = work.settled or self._settled_before(job, work) or self._not_here(work)
        if settled is not None:
            self.rows.append(row(job, work, settled, contract))
            return
        try:
            outcome = self._tried(job, work, worker_set, bench)
        except Unimportable as problem:
            self._unimportable[job.name] = problem.failure
            verdict = Verdict.failed("IMPORT_ERROR", problem.failure)
            self.rows.append(row(job, work, verdict, contract))
            return
        except BaselineError as error:
            if not self.rows:
                raise
            verdict = Verdict.failed("INVALID_BASELINE", Failure(message=str(error)))
            self._deaths[job.name, work.entry.id].append(verdict)
            self.rows.append(row(job, work, verdict, contract))
            return
        if outcome.died:
            self._deaths[job.name, work.entry.id].append(outcome.verdict)
        self.notes.update(dict.fromkeys(outcome.notes))
        self.rows.append(row(job, work, outcome.verdict, contract, outcome))
        if self._reproductions is not None:
            self._reproductions.add(job, work, outcome)

    def _tried(self, job: Job, work: Work, worker_set: WorkerSet, bench: Bench) -> Outcome:
        handles = worker_set.handles(job, work.case.ranks)
        with self._spending("measuring"):
            outcome = Trial(
                bench,
                work.entry,
                work.case,
                handles,
                [str(layer) for layer in job.layers],
                job.implementations.get(work.entry.id, {}),
                [str(layer) for layer in job.base_layers],
            ).run()
        self.spent_s["compiling_s"] += outcome.compiling_s
        self.spent_s["measuring_s"] -= outcome.compiling_s
        return outcome

    def _settled_before(self, job: Job, work: Work) -> Verdict | None:
        """The verdict of a candidate that cannot be imported, that hung once in this task, or that crashed or
        had no baseline too often in it."""
        if job.name in self._unimportable:
            return Verdict.failed("IMPORT_ERROR", self._unimportable[job.name])
        before = [r for r in self.rows if r.candidate == job.name and r.task == work.entry.id]
        imports = next((r for r in before if r.verdict in _FINAL and r.variant == work.case.variant), None)
        if imports is not None:
            return Verdict.failed("IMPORT_ERROR", imports.failure or Failure(message="cannot be imported"))
        deaths = self._deaths[job.name, work.entry.id]
        status = deaths[-1].status if deaths else None
        if status is None or (len(deaths) < MOST_DEATHS and status != "TIMEOUT"):
            return None
        whys = {"INVALID_BASELINE": "had no baseline", "TIMEOUT": "timed out"}
        why = whys.get(status, "ended its process")
        cases = "another case" if len(deaths) == 1 else f"{len(deaths)} other cases"
        return Verdict.failed(status, Failure(message=f"not tried: {cases} of {work.entry.id} {why}"))

    def _not_here(self, work: Work) -> Verdict | None:
        """A group of ranks needs a GPU for each."""
        ranks = work.case.ranks
        if ranks == 1 or self.request.device == "cpu" or ranks <= (here := torch.cuda.device_count()):
            return None
        message = f"{ranks} ranks need {ranks} GPUs, here are {here}; a CPU runs small ones: --device cpu"
        return Verdict.failed("UNSUPPORTED", Failure(message=message))

    def _last_of_variant(self, job: Job, index: int) -> bool:
        work = job.works[index]
        key = (work.entry.id, work.case.variant)
        return all((later.entry.id, later.case.variant) != key for later in job.works[index + 1 :])

    def _look(self, job: Job, work: Work, worker_set: WorkerSet) -> None:
        """The column `compile` of one (candidate, variant), from its last case."""
        if not self._is_traced(job) or work.case.ranks > 1:
            return  # nothing traces a group: the column stays n/a
        mine = [
            i
            for i, r in enumerate(self.rows)
            if (r.candidate, r.task, r.variant) == (job.name, work.entry.id, work.case.variant)
        ]
        if not any(self.rows[i].verdict in attribution.SEEN for i in mine):
            return
        with self._looking(f"{job.name} · {work.entry.id} torch.compile"):
            update = compile_columns(worker_set, job, work)
            for i in mine:
                self.rows[i] = self.rows[i].model_copy(update=update)

    def _attribute(self, job: Job, worker_set: WorkerSet) -> None:
        """The columns `origins` and `kernels`. Last of all, because a profiler may leave hooks behind in the
        candidate's process, and the baseline's have none."""
        authored = kernel_names(job.layers)
        places = {
            (r.task, r.case): i
            for i, r in enumerate(self.rows)
            if r.candidate == job.name and r.verdict in attribution.SEEN
        }
        works = {
            i: work for work in job.works if (i := places.get((work.entry.id, work.case.id))) is not None
        }
        for number, (i, work) in enumerate(works.items()):
            with self._looking(f"{job.name} · {work.entry.id} {work.case.id} kernels"):
                update = attribution.look(worker_set, job, work, authored, again=number > 0)
                self.rows[i] = self.rows[i].model_copy(update=update)
        mine = [self.rows[i] for i in works]
        self.notes.update(dict.fromkeys(attribution.foreign(mine)))
        if self.request.track == "authored":
            self._leave_out(attribution.left_out(mine))

    def _leave_out(self, rows: list[KernelRow]) -> None:
        for (candidate, task), count in Counter((r.candidate, r.task) for r in rows).items():
            least = f"less than {100 * attribution.AUTHORED_SHARE:.0f} % of whose device time"
            note = f"{count} rows of {candidate} in {task}, {least} is in kernels of its own"
            self.notes[f"left out of the track `authored`: {note}"] = None
        leaving = {id(r) for r in rows}
        self.rows = [r for r in self.rows if id(r) not in leaving]

    @contextlib.contextmanager
    def _looking(self, what: str) -> Iterator[None]:
        """A look that fails is a note, whoever's fault it is: its rows have their verdicts already."""
        self._tell(what)
        with self._spending("looking"):
            try:
                yield
            except Exception as error:
                self.notes[f"{what} could not be looked at: {type(error).__name__}: {error}"] = None

    def _tell(self, text: str) -> None:
        self._told = text
        self._tell_more("")

    def _tell_more(self, waits_for: str) -> None:
        """What the step that was told last waits for, or nothing more than the step itself."""
        text = f"{self._told}: {waits_for}" if waits_for else self._told
        self.progress(Progress(len(self._trials), self.total, text))


@contextlib.contextmanager
def _equal_threads() -> Iterator[int]:
    """The judge measures ceilings and computes with as many threads as the workers have."""
    before, threads = torch.get_num_threads(), default_threads()
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _caches() -> Iterator[Path]:
    """Compiler caches of this run's baseline workers."""
    with tempfile.TemporaryDirectory(prefix="fk-baseline-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
