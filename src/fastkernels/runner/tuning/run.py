"""`run_tuning`: every case of a plan that the time allows, in rounds.

    look     processes beside each other call each implementation once, which compiles it into the caches on
             disk; whoever takes too long is ended, and has no time
    time     one process alone times what was looked at, in the order of the plan

A round looks for up to a minute, then times all that it looked at. `keep` gets the report after every case.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.measure.absent import absent
from fastkernels.measure.environment import environment
from fastkernels.progress import Progress
from fastkernels.records import Case, TunedRow, TuneReport, Untimed
from fastkernels.runner.tuning.lane import Answer, Failed, Lane, Lost
from fastkernels.runner.tuning.look import Looked
from fastkernels.runner.tuning.plan import TuneRequest, plan
from fastkernels.runner.tuning.stopwatch import Timed
from fastkernels.runner.tuning.table import summarize
from fastkernels.runner.worker.resources import default_threads

ROUND_S, ROUND_SHARE = 60.0, 0.4  # of looking; at most this part of what is left of the run's seconds
MOST_LOST = 2  # processes, before an implementation, or a case, is left out
_POLL_S = 0.5

Keep = Callable[[TuneReport], None]


def run_tuning(
    request: TuneRequest,
    progress: Callable[[Progress], None] = lambda progress: None,
    keep: Keep = lambda report: None,
    before: TuneReport | None = None,
) -> TuneReport:
    """`before`: a report to go on with; its cases are not timed again. After Ctrl-C, what was timed.
    UsageError: nothing to time, or `before` is of another machine."""
    return _Run(request, progress, keep, before).report()


class _Run:
    def __init__(
        self,
        request: TuneRequest,
        progress: Callable[[Progress], None],
        keep: Keep,
        before: TuneReport | None,
    ) -> None:
        self._request, self._progress, self._keep = request, progress, keep
        self._begin = time.monotonic()
        self._environment = environment(request.device)
        planned = plan(request)
        self._planned = planned.cases
        self._rows: list[TunedRow] = []
        self._untimed: list[Untimed] = list(planned.untimed)
        if before is not None:
            self._go_on(before)
        self._done = {(one.task, one.case) for one in self._rows} | {
            (one.task, one.case) for one in self._untimed if one.implementation is None
        }
        self._waiting = deque(case for case in planned.cases if (case.task, case.id) not in self._done)
        # Processes, by task, case, kernel and implementation; the last two are empty before the first call.
        self._lost: Counter[tuple[str, str, str, str]] = Counter()

    def report(self) -> TuneReport:
        complete = True
        end_s = self._begin + (self._request.seconds or float("inf"))
        # On a CPU the judge's number, which leaves a core to the system: a barrier waits for a busy one.
        cores = default_threads() if self._request.device == "cpu" else os.cpu_count() or 1
        threads = max(1, cores // self._request.processes)
        lanes = [Lane(self._request.device, threads) for _ in range(self._request.processes)]
        alone = Lane(self._request.device, threads) if self._request.device == "cuda" else lanes[0]
        try:
            while self._waiting and (left_s := end_s - time.monotonic()) > 0:
                looked = self._look(lanes, time.monotonic() + min(ROUND_S, max(1.0, ROUND_SHARE * left_s)))
                self._time(alone, looked, end_s)
        except KeyboardInterrupt:
            complete = False
        finally:
            for lane in {*lanes, alone}:
                lane.close()
        return self._so_far(complete)

    def _go_on(self, before: TuneReport) -> None:
        here, there = self._environment, before.environment
        if (here.device, here.torch, here.triton) != (there.device, there.torch, there.triton):
            told = f"{there.device}, torch {there.torch}, triton {there.triton}"
            raise UsageError(f"--resume: the report is of {told}. Times do not mix: name a new file")
        self._rows = list(before.rows)  # what was asked then stays, whatever is asked now
        whole = {(one.task, one.case) for one in before.untimed if one.implementation is None}
        ended = {(row.task, row.case) for row in self._rows} | whole
        again = {(case.task, case.id) for case in self._planned} - ended
        kept = [one for one in before.untimed if (one.task, one.case) not in again]
        self._untimed += [one for one in kept if one not in self._untimed]

    # ------------------------------------------------------------ looking

    def _look(self, lanes: list[Lane], until_s: float) -> list[tuple[Case, Looked]]:
        """As many of the waiting cases as begin before then, in the order of the plan."""
        found: dict[int, tuple[Case, Looked]] = {}
        places: dict[Lane, tuple[int, Case]] = {}
        number = 0
        again: list[tuple[int, Case]] = []
        alone: list[tuple[int, Case]] = []  # found too little memory beside the others
        while True:
            for lane in (lane for lane in lanes if lane not in places):
                if again:
                    place, case = again.pop(0)
                elif self._waiting and time.monotonic() < until_s:
                    place, case = number, self._waiting.popleft()
                    number += 1
                else:
                    break
                self._tell("looking at", case)
                lane.look(case, self._skipped(case), is_alone=len(lanes) == 1)
                places[lane] = place, case
            if not places and not alone:
                return [found[place] for place in sorted(found)]
            if not places:
                lanes, again, alone = lanes[:1], alone, []
                continue
            for lane, answer in self._answers(places):
                place, case = places.pop(lane)
                if isinstance(answer, Looked):
                    found[place] = case, answer
                elif isinstance(answer, Failed) and answer.lacks_memory and len(lanes) > 1:
                    alone.append((place, case))
                elif not self._given_up(case, answer):
                    again.append((place, case))

    def _skipped(self, case: Case) -> frozenset[tuple[str, str]]:
        """Implementations that lost a process here, or too many elsewhere."""
        own = [key for key in self._lost if key[3]]
        here = {key[2:] for key in own if key[:2] == (case.task, case.id)}
        often = {name for name, n in Counter(key[2:] for key in own).items() if n >= MOST_LOST}
        for kernel, name in often - here:
            why = f"not tried: in {MOST_LOST} other cases its first call took too long or ended the process"
            self._note(case, kernel, name, why)
        return frozenset(here | often)

    def _given_up(self, case: Case, answer: Answer | None) -> bool:
        """Whether the case is left out, after this; else it is to be tried again."""
        if isinstance(answer, Failed):
            self._untimed.append(Untimed(task=case.task, case=case.id, why=answer.why))
            return True
        assert isinstance(answer, Lost)
        key = (case.task, case.id, answer.kernel, answer.implementation)
        self._lost[key] += 1
        if answer.implementation:
            self._note(case, answer.kernel, answer.implementation, answer.why)
            return False
        if self._lost[key] < MOST_LOST:
            return False
        self._untimed.append(Untimed(task=case.task, case=case.id, why=answer.why))
        return True

    def _note(self, case: Case, kernel: str, name: str, why: str) -> None:
        if kernel not in registry.task(case.task).kernels:
            return
        one = Untimed(task=case.task, case=case.id, kernel=kernel, implementation=name, why=why)
        if one not in self._untimed:
            self._untimed.append(one)

    # ------------------------------------------------------------ times

    def _time(self, lane: Lane, looked: list[tuple[Case, Looked]], end_s: float) -> None:
        todo = deque(looked)
        while todo and time.monotonic() < end_s:
            case, found = todo.popleft()
            self._tell("timing", case)
            lane.time(case, found, self._request.budget_s)
            self._keep(self._so_far(complete=False))  # while the lane works
            ((_, answer),) = self._answers({lane: (0, case)})
            if isinstance(answer, Timed):
                lacks = absent(case.task, self._request.device)
                self._rows += [row.model_copy(update={"absent": lacks}) for row in answer.rows]
                self._untimed += [*found.untimed, *answer.untimed]
                if not answer.rows:
                    self._untimed.append(Untimed(task=case.task, case=case.id, why=_WITHOUT))
                self._done.add((case.task, case.id))
            elif not self._given_up(case, answer):
                todo.appendleft((case, _without(found, self._skipped(case))))
        self._waiting.extendleft(case for case, _ in reversed(todo))
        self._keep(self._so_far(complete=False))

    # ------------------------------------------------------------ both

    def _answers(self, places: Iterable[Lane]) -> list[tuple[Lane, Answer]]:
        """At least one."""
        while True:
            found = [(lane, lane.answer(self._request.first_call_s)) for lane in places]
            if answered := [(lane, answer) for lane, answer in found if answer is not None]:
                return answered
            wait([lane.connection for lane in places], _POLL_S)

    def _tell(self, what: str, case: Case) -> None:
        self._progress(Progress(len(self._done), len(self._planned), f"{what} {case.task} {case.id}"))

    def _so_far(self, complete: bool) -> TuneReport:
        timed = {(row.task, row.case) for row in self._rows}
        tried = timed | {(one.task, one.case) for one in self._untimed if one.implementation is None}
        left = Counter(case.task for case in self._planned if (case.task, case.id) not in tried)
        return TuneReport(
            schema=1,
            environment=self._environment,
            request=self._request.model_dump(mode="json"),
            rows=tuple(self._rows),
            untimed=tuple(self._untimed),
            summary=summarize(self._rows, len(self._planned), dict(left), time.monotonic() - self._begin),
            complete=complete,
        )


_WITHOUT = "no implementation that is installed has a time"


def _without(looked: Looked, skip: frozenset[tuple[str, str]]) -> Looked:
    called = tuple(
        dataclasses.replace(
            one, served={n: apart for n, apart in one.served.items() if (one.kernel, n) not in skip}
        )
        for one in looked.called
    )
    return dataclasses.replace(looked, called=called)
