"""A simulated machine (durations with scatter and tails, processes that differ), and a small repository."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fastkernels.gate import measurement
from fastkernels.measure import stats
from fastkernels.measure.environment import environment
from fastkernels.records import Environment, KernelReport, KernelRow, KernelSummary, Look
from fastkernels.runner.kernel_trial.blocks import Blocks, durations_ns
from fastkernels.runner.kernel_trial.request import Job, KernelsRequest, Work
from tests.unit.gate.repositories import CASES, KERNEL, make_repository
from tests.unit.runner.kernel_trial.test_blocks import reading

SCATTER = 0.02  # of one call
TAIL_SHARE, TAIL = 0.05, 1.5  # of calls are disturbed, and take that much longer
PROCESS = 0.003  # what processes with the same code differ by


class Machine:
    """`factor` is the head's time / the base's time, in truth."""

    def __init__(self, seed: int, base_us: float = 20.0, blocks: int = 200, process: float = PROCESS) -> None:
        self.rng = np.random.default_rng(seed)
        self.base_us, self.blocks, self.process = base_us, blocks, process

    def look(self, factor: float = 1.0) -> Look:
        """One look in processes of its own, through the statistics of a real trial."""
        drift = 1 + 0.05 * np.sin(np.arange(self.blocks) / 15)  # of clocks and heat: both sides see it
        sides = [self._process(truth, drift) for truth in (1.0, factor, 1.0)]
        blocks = Blocks()
        for index, times in enumerate(zip(*sides)):
            blocks.add(index, *map(reading, times))
        interval = blocks.speedup()
        return Look(
            speedup=interval.median,
            speedup_ci=(interval.low, interval.high),
            base_us=float(np.median(blocks.baseline_ns())) / 1e3,
            head_us=float(np.median(durations_ns(blocks.c))) / 1e3,
            noise_pct=stats.noise_pct([blocks.identical()]),
            samples=self.blocks,
        )

    def _process(self, truth: float, drift: np.ndarray) -> np.ndarray:
        steady = truth * self.rng.normal(1, self.process)
        scatter = self.rng.lognormal(0, SCATTER, self.blocks)
        tail = np.where(self.rng.random(self.blocks) < TAIL_SHARE, TAIL, 1.0)
        return self.base_us * 1e3 * steady * drift * scatter * tail


@cache
def here() -> Environment:
    """Once: it asks git, in processes of their own."""
    return environment("cpu")


class Runs:
    """Stands in for run_kernels. `verdict(job, work)` says whether a side is right, `factor(job, work)` how
    slow the head is, `facts(job, work)` what else a timed row says; `calls` are the (job, case) of every run,
    `requests` what each was asked."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.verdict: Callable[[Job, Work], str] = lambda job, work: "PASSED"
        self.factor: Callable[[Job, Work], float] = lambda job, work: 1.0
        self.facts: Callable[[Job, Work], dict] = lambda job, work: {}
        self.calls: list[list[tuple[str, str]]] = []
        self.requests: list[KernelsRequest] = []
        self.interrupted_after: int | None = None

    def __call__(self, request: KernelsRequest, progress: object, jobs: list[Job]) -> KernelReport:
        self.requests.append(request)
        self.calls.append([(job.name, work.case.id) for job in jobs for work in job.works])
        rows = tuple(self._row(job, work) for job in jobs for work in job.works)
        complete = self.interrupted_after is None or len(self.calls) < self.interrupted_after
        summary = KernelSummary(
            rows=len(rows), passed=0, failed=0, unstable=0, geomean_speedup=None, wall_s=0, measuring_share=0
        )
        rows = rows if complete else rows[:-1]
        return KernelReport(environment=here(), request={}, rows=rows, summary=summary, complete=complete)

    def _row(self, job: Job, work: Work) -> KernelRow:
        facts: dict = {
            "task": work.entry.id, "variant": work.case.variant, "case": work.case.id, "candidate": job.name,
            "contract": "host",
        }  # fmt: skip
        if work.case.timed:
            facts |= self.facts(job, work)
        verdict = work.settled.label if work.settled else self.verdict(job, work)
        if verdict != "PASSED":
            return KernelRow(**facts, verdict=verdict, failure={"message": f"it is {verdict}"})  # type: ignore[arg-type]
        if not work.case.timed:
            return KernelRow(**facts, verdict=verdict, timed=False)
        look = self.machine.look(self.factor(job, work))
        significant = facts.pop("significant", False)
        return KernelRow(
            **facts, verdict=verdict, speedup=look.speedup, speedup_ci=look.speedup_ci, samples=look.samples,
            baseline_us=look.base_us, candidate_us=look.head_us, noise_pct=look.noise_pct,
            significant=significant,
        )  # fmt: skip


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs(Machine(seed=1))
    monkeypatch.setattr(measurement, "run_kernels", found)
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits: `second` has a marked kernel, and one tiny case less than `first`."""

    def one_less(cases: str) -> str:
        lines = cases.splitlines(keepends=True)
        tiny = next(place for place, line in enumerate(lines) if '"size":"tiny"' in line)
        below = enumerate(lines[tiny:], start=tiny)
        del lines[next(place for place, line in below if '"form"' not in line and '"phase"' not in line)]
        return "".join(lines)

    folder = tmp_path_factory.mktemp("repository")
    make_repository(folder, {KERNEL: lambda code: f"{code}\nMARK = 'second'\n", CASES: one_less})
    return folder
