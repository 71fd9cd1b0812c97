"""`fk kernels` in parts: a candidate, a task, as many ranks, and a few of the cases."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from fastkernels.cluster.facts import levels, used
from fastkernels.cluster.nodes import Cluster
from fastkernels.cluster.schedule import Answered, Part, Problem
from fastkernels.cluster.sent import packed
from fastkernels.errors import BaselineError
from fastkernels.judge.summary import merge, summarize
from fastkernels.judge.verdict import Verdict
from fastkernels.loader.candidates import CandidateSet
from fastkernels.loader.digest import files_of
from fastkernels.progress import Progress, Show
from fastkernels.records import Failure, KernelReport, KernelRow
from fastkernels.runner.kernel_trial.request import (
    Job,
    KernelsRequest,
    Work,
    candidate_sets,
    judged_files,
    out_of_reach,
    plan,
)
from fastkernels.runner.kernel_trial.rows import row
from fastkernels.runner.kernel_trial.run import run_kernels

MOST_CASES = 8  # of a part: starting processes takes as long as some cases, and a lost part is judged again


@dataclass(frozen=True)
class KernelsPart:
    request: KernelsRequest
    job: str
    task: str
    cases: frozenset[tuple[str, str]]  # variant and id

    def judge(self, candidate: CandidateSet | None) -> KernelReport:
        """On a node: the report of these cases alone."""
        folders = (os.pathsep.join(map(str, candidate.layers)),) if candidate else ()
        request = self.request.model_copy(update={"targets": (self.task,), "candidates": folders})
        [job] = plan(request)
        job.name = self.job
        job.works = [work for work in job.works if (work.case.variant, work.case.id) in self.cases]
        report = run_kernels(request, jobs=[job])
        judged = (files_of(candidate),) if candidate else ()
        return report.model_copy(update={"candidates": judged})


def run_kernels_on(
    cluster: Cluster,
    request: KernelsRequest,
    show: Show = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> KernelReport:
    """The report that run_kernels gives, judged by the nodes. What a node could not judge is a row,
    INVALID_BASELINE.

    UsageError, MachineError, BaselineError as run_kernels, and where every part was answered with one.
    """
    begin = time.monotonic()
    jobs = plan(request)
    sets = {found.name: found for found in candidate_sets(request)}
    notes = list(out_of_reach([*sets.values()], {job.name for job in jobs}))
    for line in notes:
        say(line)

    def lost(line: str) -> None:
        say(line)
        notes.append(line)

    planned = list(_parts(request, jobs, cluster.most_gpus))
    parts, works = [part for part, _, _ in planned], {part.name: (job, of) for part, job, of in planned}
    sent = {job.name: packed(sets[job.name]) for job in jobs if job.name in sets}
    total, done = sum(part.trials for part in parts), 0
    found: dict[str, Answered] = {}
    complete = True
    show(Progress(0, total, f"{len(parts)} parts on {cluster.told}"))
    try:
        for part, answered in cluster.answers(parts, sent, lost, show):
            found[part.name] = answered
            done += part.trials
            show(Progress(done, total, f"judged: {part.name}"))
            if request.fail_fast and getattr(answered.answer, "failed_fast", False):
                complete = False
                break
    except KeyboardInterrupt:
        complete = False
    problems = [answered.answer for answered in found.values() if isinstance(answered.answer, Problem)]
    if problems and complete and len(problems) == len(found):
        raise problems[0].error
    notes.append(f"judged by {cluster.told}, in {time.monotonic() - begin:.0f} s")
    blank = KernelReport(
        schema=1,
        environment=cluster.environment,
        request=request.model_dump(mode="json"),
        rows=(),
        candidates=judged_files(request),
        notes=tuple(notes),
        summary=summarize([], 0.0),
        complete=complete,
    )
    return _joined(blank, jobs, works, found)


def _parts(
    request: KernelsRequest, jobs: Sequence[Job], most_gpus: int
) -> Iterator[tuple[Part, Job, list[Work]]]:
    for job in jobs:
        for (task, ranks), group in groupby(sorted(job.works, key=_kind), key=_kind):
            works = list(group)
            count = -(-len(works) // MOST_CASES)
            for number in range(count):
                first, last = (len(works) * n // count for n in (number, number + 1))
                some = works[first:last]
                name = f"{job.name} · {task}" + (f" on {ranks} ranks" if ranks > 1 else "")
                name += f", cases {first + 1} to {last} of {len(works)}" if count > 1 else ""
                cases = frozenset((work.case.variant, work.case.id) for work in some)
                asked = request.model_copy(update={"seed": _seed(request.seed, name)})
                body = KernelsPart(asked, job.name, task, cases)
                # More ranks than any node has GPUs: a node says so in its row.
                gpus = min(ranks, most_gpus) if request.device == "cuda" else 0
                yield Part(name, body, job.name, len(some), gpus), job, some


def _kind(work: Work) -> tuple[str, int]:
    return work.entry.id, work.case.ranks


def _seed(seed: int | None, part: str) -> int:
    """Of a part: no two have the same inputs. Nobody who sees one knows another."""
    return int.from_bytes(hashlib.sha256(f"{seed} {part}".encode()).digest()[:7], "big")


def _joined(
    blank: KernelReport,
    jobs: Sequence[Job],
    works: dict[str, tuple[Job, list[Work]]],
    found: dict[str, Answered],
) -> KernelReport:
    """All rows in the order of the plan, each once."""
    reports = []
    for name, (job, of_part) in works.items():
        answer = found[name].answer if name in found else None
        if isinstance(answer, Problem):
            verdict = Verdict.failed("INVALID_BASELINE", Failure(message=answer.message))
            asked = blank.request["contract"]
            rows = tuple(
                row(job, work, verdict, "collective" if work.case.ranks > 1 else asked) for work in of_part
            )
            answer = blank.model_copy(update={"rows": rows, "notes": ()})
        if answer is not None:
            reports.append(answer)
    whole = merge([blank, *reports])
    place = {
        (job.name, work.entry.id, work.case.variant, work.case.id): number
        for number, (job, work) in enumerate((job, work) for job in jobs for work in job.works)
    }

    def key(row: KernelRow) -> tuple[str, str, str, str]:
        return row.candidate, row.task, row.variant, row.case

    missing = place.keys() - set(map(key, whole.rows))
    if missing and whole.complete and blank.request["track"] == "open":
        raise BaselineError(f"{len(missing)} rows were asked for and are in no answer, {min(missing)} is one")
    judged = [one for one in found.values() if isinstance(one.answer, KernelReport)]
    isolation = levels(one.answer for one in judged)
    return whole.model_copy(
        update={
            "environment": blank.environment.model_copy(update={"isolation": isolation}),
            "request": blank.request,
            "rows": tuple(sorted(whole.rows, key=lambda row: place[key(row)])),
            "nodes": used((one.node, one.answer) for one in judged),
            "complete": blank.complete,
        }
    )
