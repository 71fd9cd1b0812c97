"""Models that answer named inputs with named outputs: batches one after another.

A batch reaches a side with the word to answer it (transfer/arrays.py), when the one before is answered:
whoever had them all could answer them together, and a batch of one would be a request of a large batch. The
judge's clock runs until the side has said a digest of every answer of a batch. Which of them it wants to see
it says when the run is over: fetching all would take longer than some runs, and what is not there yet has no
digest.

Where a model has a part that is not timed (`finish`: a decoder), what is compared is what that makes of the
outputs: of timed runs by the baseline, of the samples by their own side.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from fastkernels.records import Failure, Size
from fastkernels.registry.schema import ProgramCorrectness
from fastkernels.registry.workloads import ProgramWorkload
from fastkernels.runner.models.answers import Comparison
from fastkernels.runner.models.draws import Request, Requests
from fastkernels.runner.models.replies import Digests, Outputs, garbled, parsed, read
from fastkernels.runner.models.sides import SideFailure, SideHandle, Sides
from fastkernels.runner.transfer.arrays import digest, handed, unpacked
from fastkernels.score.distances import largest

# Of a warm-up; the second captures the graphs that the timed ones replay. The last are left out where they
# would take more than a second.
WARM_UP_BATCHES, CAPTURED, WARM_UP_S = 4, 2, 1.0
SIDE_BATCH = 64  # requests of one call where a workload does not say
# A noise run has other company in its launches: of the samples of one shape a third at a time.
NOISE_PARTS = 3
Answer = dict[str, np.ndarray]


class ProgramAnswers:
    """Inputs and outputs as the architecture declares them."""

    side: ClassVar = "fastkernels.runner.models.program_side:ProgramSide"

    def __init__(
        self, facts: ProgramCorrectness, size: Size, config: Mapping[str, Any], rng: random.Random
    ) -> None:
        self._facts, self._samples, self._rng = facts, facts.samples[size], rng
        self._requests = Requests(facts.inputs, config, rng)
        self._distances = [
            (name, one.distance, one.parameters) for name, chosen in facts.outputs.items() for one in chosen
        ]
        alike = self._samples.count // len(self._samples.shapes)
        self.noise_changes: list[dict[str, Any]] = [
            {"max_batch": max(1, alike // NOISE_PARTS)},
            *({"noise": group} for group in facts.noise),
        ]

    def engine(self, workloads: Sequence[Any], alone: bool) -> dict[str, Any]:
        return {}

    def inputs(self, workload: ProgramWorkload) -> list[Request]:
        return self._requests.of(workload.shapes, workload.requests)

    def given(self, inputs: Sequence[Request]) -> AbstractContextManager[dict[str, Any]]:
        return handed(inputs)

    def warm_up(self, side: SideHandle, workload: ProgramWorkload) -> None:
        begin = time.perf_counter()
        for number in range(WARM_UP_BATCHES):
            if number >= CAPTURED and time.perf_counter() - begin > WARM_UP_S:
                return
            self._run(side, self._requests.of(workload.shapes, workload.batch), workload.batch)

    def timed(
        self, side: SideHandle, inputs: list[Request], workload: ProgramWorkload
    ) -> tuple[float, dict[int, Answer]]:
        """A few answers, chosen after the run. Of a throughput the seconds of all batches count; of a latency
        the median batch's, as the models' own harnesses say latencies: some batch of hundreds meets a busy
        host, and waits for longer than all others take."""
        seconds, digests = self._run(side, inputs, workload.batch)
        chosen = sorted(self._rng.sample(range(len(inputs)), min(self._facts.audited, len(inputs))))
        answers = dict(zip(chosen, self._outputs(side, digests, chosen), strict=True))
        if workload.kind == "throughput":
            return sum(seconds), answers
        return statistics.median(seconds) * len(seconds), answers

    def amount(self, workload: ProgramWorkload) -> float:
        """Requests of a throughput; batches of a latency."""
        return workload.requests if workload.kind == "throughput" else workload.requests / workload.batch

    def kept(
        self, inputs: Sequence[Request], baseline: Any, candidate: Mapping[int, Answer]
    ) -> list[tuple[Request, Answer]]:
        """Requests with their answers."""
        return [(inputs[i], answer) for i, answer in candidate.items()]

    def audit(self, baseline: SideHandle, runs: Sequence[list[tuple[Request, Answer]]]) -> list[float]:
        """The baseline answers requests of the timed runs again, in other company."""
        requests, found = map(list, zip(*chain.from_iterable(runs)))
        expected = self._timed_outputs(baseline, requests)
        if self._facts.finished:
            # What has other names or shapes cannot be finished, and is as far off as can be.
            nothing = dict.fromkeys(self._facts.outputs, np.array(np.nan))
            found = [
                self._finished(baseline, ours, request) if _forms(ours) == _forms(theirs) else nothing
                for ours, theirs, request in zip(found, expected, requests, strict=True)
            ]
            expected = [self._finished(baseline, *pair) for pair in zip(expected, requests, strict=True)]
        return self._discrepancies(expected, found)

    def audited(self, found: list[float]) -> list[float]:
        return found

    def repeated(self, runs: Sequence[Any]) -> float:
        """An answer follows from no other one."""
        return 0.0

    def proof(self) -> list[Request]:
        """A pass through every module, at all shapes of the samples."""
        return self._requests.of(self._samples.shapes, max(len(self._samples.shapes), self._facts.audited))

    def compare(self, sides: Sides, report: Callable[[str], None]) -> Comparison:
        self._sampled = self._requests.of(self._samples.shapes, self._samples.count)
        report("answers, baseline")
        self._expected = self._all(sides.use("baseline"))
        report("answers, candidate")
        found = self._all(sides.use("candidate"))
        # Shapes take turns: so far ahead lies another request of the same shape.
        turn = len(self._samples.shapes)
        unrelated = [*self._expected[turn:], *self._expected[:turn]]
        return Comparison(
            d=self._discrepancies(self._expected, found),
            ruin=self._discrepancies(self._expected, unrelated),
        )

    def again(self, side: SideHandle) -> list[float]:
        return self._discrepancies(self._expected, self._all(side))

    def _all(self, side: SideHandle) -> list[Answer]:
        """A side's answers to the samples, as they are compared."""
        outputs = self._timed_outputs(side, self._sampled)
        if self._facts.finished:
            pairs = zip(outputs, self._sampled, strict=True)
            outputs = [self._finished(side, one, request) for one, request in pairs]
        return outputs

    def _discrepancies(self, expected: Sequence[Answer], found: Sequence[Answer]) -> list[float]:
        return largest(self._distances, expected, found)

    def _timed_outputs(self, side: SideHandle, requests: list[Request]) -> list[Answer]:
        _, digests = self._run(side, requests, SIDE_BATCH)
        return self._outputs(side, digests, range(len(requests)))

    def _run(
        self, side: SideHandle, requests: Sequence[Request], batch: int
    ) -> tuple[list[float], list[str]]:
        """Seconds of each batch, and the digests."""
        seconds: list[float] = []
        digests: list[str] = []
        for start in range(0, len(requests), batch):
            part = requests[start : start + batch]
            with handed(part) as arguments:
                begin = time.perf_counter()
                said = side.call("answer", start=start, **arguments)
                seconds.append(time.perf_counter() - begin)
            found = parsed(side, Digests, "answer", said).digests
            if len(found) != len(part):
                message = f"asked for {len(part)} answers, got {len(found)}"
                raise SideFailure(side.side, Failure(message=message))
            digests += found
        return seconds, digests

    def _outputs(self, side: SideHandle, digests: Sequence[str], chosen: Sequence[int]) -> list[Answer]:
        """Those answers of the last run. SideFailure where one is not what its digest is of."""
        found = []
        for index in chosen:  # one at a time: all of them would be longer than a message may be
            [answer] = self._read(side, "outputs", 1, chosen=[index])
            if digest(answer) != digests[index]:
                message = f"TAMPERED(late-answer): answer {index} was another one when the clock stopped"
                raise SideFailure(side.side, Failure(message=message))
            found.append(answer)
        return found

    def _finished(self, side: SideHandle, outputs: Answer, request: Request) -> Answer:
        with handed([outputs, request]) as arguments:
            return self._read(side, "finished", 1, **arguments)[0]

    def _read(self, side: SideHandle, do: str, count: int, **arguments: Any) -> list[Answer]:
        """`count` answers that a side is asked for."""
        found = read(side, Outputs, do, **arguments).answers
        if len(found) != count:
            raise garbled(side, do, f"{len(found)} answers, not {count}")
        is_compared = do == "finished" or not self._facts.finished
        if is_compared and any(one.keys() != self._facts.outputs.keys() for one in found):
            raise garbled(side, do, f"answers are not by the names {', '.join(self._facts.outputs)}")
        try:
            return [{name: unpacked(array) for name, array in answer.items()} for answer in found]
        except ValueError as error:
            raise garbled(side, do, str(error)) from error


def _forms(answer: Answer) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in answer.items()}
