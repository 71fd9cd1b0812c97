"""The workers of a run: two of the baseline for the whole run, and one for each candidate; replaced when they
die."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastkernels import interrupts
from fastkernels.errors import BaselineError
from fastkernels.loader import views
from fastkernels.loader.inputs import draw_links, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.ranks import own
from fastkernels.measure.chain import of_ranks
from fastkernels.measure.clocks import SmClock
from fastkernels.records import Case, Failure
from fastkernels.runner.inside import forcing
from fastkernels.runner.kernel_trial.request import Job
from fastkernels.runner.sandbox.isolation import HiddenMemory, common
from fastkernels.runner.transfer.shared_memory import Arena, Want
from fastkernels.runner.worker.isolation_levels import LEVELS, NONE, IsolationLevel
from fastkernels.runner.worker.pool import Worker, WorkerError, WorkerProblem
from fastkernels.runner.worker.resources import memory_limit
from fastkernels.runner.worker.worker_calls import Timeouts
from fastkernels.runner.worker.worker_handle import WorkerHandle

_SIDE = "fastkernels.runner.inside.kernel_side:KernelSide"
_RANKS_SIDE = "fastkernels.runner.ranks.ranks_side:RanksSide"
_PROBE_BYTE = 0x5A
_MOST_REPLY_BYTES = 4 << 20  # descriptions of a chain's results take some tens of kilobytes
_LOOK_SEED = 20  # shapes are looked at; the values are nobody's secret


class Unimportable(Exception):
    """A revision's own package cannot be imported, at whatever isolation level; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        place = f" ({failure.file}:{failure.line})" if failure.file else ""
        super().__init__(f"{failure.message}{place}")


@contextlib.contextmanager
def _closed_unless_good(workers: Sequence[Worker]) -> Iterator[None]:
    """Workers that a body starts, and may make: nobody else knows them yet."""
    try:
        yield
    except BaseException:
        for worker in workers:
            worker.close()
        raise


class WorkerSet:
    """A context manager: its processes end with it."""

    def __init__(
        self,
        device: str,
        threads: int,
        timeouts: Timeouts,
        clock: SmClock,
        caches: Path,
        memory: HiddenMemory,
        libraries: Sequence[str] = (),
    ) -> None:
        """`libraries`: slow ones to import that the workers will need, besides torch."""
        self._device, self._threads, self._timeouts, self._clock = device, threads, timeouts, clock
        self._caches, self._memory, self._libraries = caches, memory, libraries
        self._ranks = 1  # of which every worker is a group
        self._baseline: list[WorkerHandle | None] = [None, None]
        self._base: tuple[tuple[Path, ...], Path | None] = ((), None)
        self._candidate: WorkerHandle | None = None
        self._candidate_of: str | None = None
        self._possible = list(LEVELS)
        self._levels: tuple[str, ...] | None = None  # of every candidate so far
        self.stays_root: dict[str, None] = {}  # why candidates run as root
        self.overhead_ns = 0

    def __enter__(self) -> WorkerSet:
        return self

    @interrupts.held()
    def __exit__(self, *_: object) -> None:
        self.dismiss_candidate()
        self._dismiss_baselines()

    @property
    def levels(self) -> tuple[str, ...]:
        """What separates candidates here, beyond isolation.ALWAYS."""
        return (*(self._levels or ()), *(("memory",) if self._memory.hidden else ()))

    def handles(self, job: Job, ranks: int = 1) -> tuple[WorkerHandle, WorkerHandle, WorkerHandle]:
        """(baseline A, candidate C, baseline A'), all alive, each a group of so many ranks."""
        self._of(ranks)
        a, a2 = self._baselines(job)
        return a, self._candidate_for(job), a2

    def dismiss_candidate(self) -> None:
        if self._candidate is not None:
            self._candidate.unload()
            self._candidate.worker.close()
        self._candidate = self._candidate_of = None

    @contextlib.contextmanager
    def loaded(
        self, job: Job, case: Case, candidate: bool, again: bool = False, kernels_matter: bool = True
    ) -> Iterator[WorkerHandle]:
        """The candidate or a baseline worker with a case's module, called once: to look at it, untimed.
        `again`: right after another case of the same job. Where our kernels do not matter, their references
        run, so that nobody waits for one to be built."""
        self._of(case.ranks)
        handle = self._candidate_for(job) if candidate else self._baselines(job)[0]
        specs = own(trial_specs(case, build_module(Overlay.over_baseline(), case, "meta")))
        plan, stored = of_ranks(case.ranks), views.stored(specs)
        inbox = Arena.like(stored, self._device, plan.links_of)
        drawn = draw_links(specs, case, _LOOK_SEED, plan.links_of, device=self._device)
        drawn |= views.laid(specs, drawn, views.of_all(strided=False))
        inbox.write({name: drawn[name] for name in stored})
        try:
            layers = [str(layer) for layer in (job.layers if candidate else job.base_layers)]
            forced = {} if kernels_matter else forcing.references()
            if candidate:
                forced |= job.implementations.get(case.task, {})
            results = handle.load(case, layers, forced, inbox, again)
            handle.give_boxes(stored, results, plan.links_of, {})
            yield handle
        finally:
            handle.unload()
            inbox.close()

    # ------------------------------------------------------------ processes

    def _of(self, ranks: int) -> None:
        if ranks != self._ranks:
            self.dismiss_candidate()
            self._dismiss_baselines()
            self._ranks = ranks

    def _dismiss_baselines(self) -> None:
        for handle in self._baseline:
            if handle is not None:
                handle.worker.close()
        self._baseline = [None, None]

    def _baselines(self, job: Job) -> tuple[WorkerHandle, WorkerHandle]:
        """Both baselines; those that are missing are started together. A base that is not our own
        baseline is separated as a candidate is."""
        if self._base != (job.base_layers, job.base_source):
            self._dismiss_baselines()
            self._base = (job.base_layers, job.base_source)
        missing = [i for i, handle in enumerate(self._baseline) if handle is None or not handle.worker.alive]
        if job.base_layers or job.base_source:
            for i in missing:
                try:
                    worker, hello = self._separated(f"base {'AB'[i]}", job.base_source, job.base_layers)
                except Unimportable as problem:
                    raise BaselineError(
                        f"The kernels of the base cannot be imported: {problem}. There is nothing to compare "
                        "with: mend them, or name another base"
                    ) from problem
                self.overhead_ns = self.overhead_ns or hello["overhead_ns"]
                self._baseline[i] = self._handle(worker)
            missing = []
        begun: list[Worker] = []
        with _closed_unless_good(begun):
            for i in missing:
                begun.append(self._worker(f"baseline {'AB'[i]}", self._caches))
            for i, worker in zip(missing, begun):
                try:
                    hello = self._start(worker)
                    self._reach(worker)
                except WorkerProblem as problem:
                    said = f"{problem.failure.message}\n{problem.failure.output}"
                    raise BaselineError(f"A baseline worker does not start: {said}") from problem
                # One figure for all processes of a run, or two sides would be measured with two clocks.
                self.overhead_ns = self.overhead_ns or hello["overhead_ns"]
                self._baseline[i] = self._handle(worker)
        a, a2 = self._baseline
        assert a is not None
        assert a2 is not None
        return a, a2

    def _candidate_for(self, job: Job) -> WorkerHandle:
        """Raises Unimportable for a revision whose package cannot be imported."""
        if self.is_fresh(job):
            self.dismiss_candidate()
            self._candidate = self._handle(self._separated(job.name, job.source, job.layers)[0])
            self._candidate_of = job.name
        assert self._candidate is not None
        return self._candidate

    def is_fresh(self, job: Job) -> bool:
        """Whether `handles` will start a new process for this candidate."""
        return self._candidate is None or self._candidate_of != job.name or not self._candidate.worker.alive

    def _handle(self, worker: Worker) -> WorkerHandle:
        return WorkerHandle(worker, self._device, self._timeouts, self._clock, self.overhead_ns, self._ranks)

    def _separated(self, name: str, source: Path | None, layers: Sequence[Path]) -> tuple[Worker, dict]:
        """A candidate's worker at the best level that shared memory passes, and what it says at its
        start. Raises Unimportable for a source whose package cannot be imported behind any."""
        reads = (*layers, *([source.parent] if source else []))
        possible = list(self._possible)
        while len(possible) > 1:
            worker = self._worker(name, None, source, reads, possible[0])
            try:
                with _closed_unless_good([worker]):
                    hello = self._start(worker)
                    self._probe(worker)
            except WorkerProblem as problem:
                possible.pop(0)
                if "user" in worker.isolation:
                    possible, why = [NONE], f"memory cannot be shared with another user: {problem}"
                    self.stays_root[why] = None
            else:
                self._reached(worker, possible)
                return worker, hello
        worker = self._worker(name, None, source, reads)
        try:
            with _closed_unless_good([worker]):
                hello = self._start(worker)
                self._reach(worker)  # beside a base that is no baseline of ours, nobody did it before
        except WorkerProblem as problem:
            if source is not None and not worker.imported:
                raise Unimportable(problem.failure) from problem
            raise BaselineError(
                f"The worker of {name} does not start: {problem.failure.message}\n{problem.failure.output}"
            ) from problem
        self._reached(worker, possible)
        return worker, hello

    def _reached(self, worker: Worker, possible: list[IsolationLevel]) -> None:
        self._possible = possible  # a worker that starts without any says nothing of them
        holds = ("hold",) if self._device == "cuda" and self._ranks == 1 else ()
        self._levels = common(self._levels, (*worker.isolation, *holds))
        if worker.stays_root:
            self.stays_root[worker.stays_root] = None

    def _reach(self, worker: Worker) -> None:
        """Probe a worker; the judge shows its memory where sharing does not work otherwise."""
        try:
            self._probe(worker)
        except WorkerError:
            if not self._memory.hidden:
                raise
            self._memory.reveal()
            self._probe(worker)

    def _probe(self, worker: Worker) -> None:
        """Raises WorkerProblem unless the worker reads what the judge wrote."""
        import torch

        arena = Arena.create([Want("probe", (), torch.uint8)], self._device, writable=False)
        arena.write({"probe": torch.full((1,), _PROBE_BYTE, dtype=torch.uint8, device=self._device)})
        try:
            answer = worker.call("probe", self._timeouts.build, arena.descriptors, ticket=arena.ticket)
        finally:
            arena.close()
        assert answer == {"byte": _PROBE_BYTE}, f"shared memory reads {answer}"

    def _worker(
        self,
        name: str,
        caches: Path | None,
        source: Path | None = None,
        reads: Sequence[Path] = (),
        level: IsolationLevel = NONE,
    ) -> Worker:
        limit = None if caches is not None else memory_limit(self._device)
        return Worker(
            name,
            self._threads,
            shared_caches=caches,
            memory_bytes=limit,
            source=source,
            reads=reads,
            libraries=self._libraries,
            processes=self._ranks,
            on_cpu=self._device == "cpu",
            most_reply_bytes=_MOST_REPLY_BYTES,
            **level._asdict(),
        )

    def _start(self, worker: Worker) -> dict:
        settings: dict[str, Any] = {"device": self._device, "threads": self._threads}
        if self._ranks > 1:
            return worker.start(_RANKS_SIDE, **settings, ranks=self._ranks)
        return worker.start(_SIDE, **settings)
