"""The one protocol for every modality: a request is a generator that yields what it needs and gets the result back.

    def chat(tokens, sampling):   return (yield Tokens("lm", tokens, sampling))
    def caption(image, tokens):   features = yield [Call("vision", patch) for patch in image]
                                  return (yield Tokens("lm", splice(tokens, features), sampling))

Each yield names a stage and its input, alone or in a list. The engine collects what is pending, the stages group calls
that fit together and launch them, and each generator resumes with its result (a list for a list).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastkernels.engine.requests import SamplingParams
from fastkernels.errors import RequestError


@dataclass(frozen=True, slots=True)
class Tokens:
    """Continue `tokens` in a TokenStage. forced: ids that are fed instead of the sampled ones, max_tokens of them."""

    stage: str
    tokens: list[int]
    sampling: SamplingParams
    forced: list[int] | None = None


class Call:
    """One call of a BatchStage; with `loop`, its first argument is replaced by the result that many times."""

    __slots__ = ("args", "loop", "stage")

    def __init__(self, stage: str, *args: Any, loop: int = 1) -> None:
        self.stage, self.args, self.loop = stage, args, loop


Need = Tokens | Call
Program = Generator[Any, Any, Any]


class Stage(Protocol):
    """Takes needs under a ticket and gives results back under it, in any order."""

    def submit(self, ticket: int, need: Any) -> None:
        """Queue a need; a RequestError refuses this one and harms no other."""
        ...

    def advance(self) -> list[tuple[int, Any]]:
        """Launch work and return what is finished. Called as long as the stage has anything to do."""
        ...

    def abandon(self) -> None:
        """Forget everything that was submitted."""
        ...


@dataclass
class _Running:
    """A generator, and the results of its last yield that are there."""

    index: int
    program: Program
    is_list: bool = False
    results: list[Any] = field(default_factory=list)
    missing: int = 0


class Engine:
    """Runs programs over named stages until all are done."""

    def __init__(self, stages: dict[str, Stage]) -> None:
        self.stages = stages
        self._tickets: dict[int, tuple[_Running, int]] = {}
        self._next_ticket = 0

    def run(self, programs: Iterable[Program], on_done: Callable[[int], None] | None = None) -> list[Any]:
        """The return value of each program, in order; a program that a RequestError ended has the error as its value.

        Any other exception ends them all: the stages are emptied, so that the engine can be used again.
        """
        running = [_Running(index, program) for index, program in enumerate(programs)]
        values: list[Any] = [None] * len(running)
        try:
            ready = running
            while True:
                for one in ready:
                    self._resume(one, values, on_done)
                if not self._tickets:
                    return values
                ready = self._advance()
        except BaseException:
            self._tickets.clear()
            for stage in self.stages.values():
                stage.abandon()
            raise

    def _resume(self, one: _Running, values: list[Any], on_done: Callable[[int], None] | None) -> None:
        """Hand over results until the program waits for a stage or ends."""
        try:
            while not one.missing:
                needs = one.program.send(self._handover(one))
                one.is_list = isinstance(needs, list)
                needs = needs if isinstance(needs, list) else [needs]
                one.results, one.missing = [None] * len(needs), len(needs)
                for place, need in enumerate(needs):
                    self._submit(one, place, need)
        except StopIteration as stop:
            values[one.index] = stop.value
        except RequestError as error:
            values[one.index] = error
            for ticket in [t for t, (owner, _) in self._tickets.items() if owner is one]:
                self._tickets[ticket] = (_Running(one.index, one.program), -1)      # its other needs come back to nobody
        else:
            return
        if on_done is not None:
            on_done(one.index)

    @staticmethod
    def _handover(one: _Running) -> Any:
        if not one.results and not one.is_list:
            return None                                     # not started yet
        return one.results if one.is_list else one.results[0]

    def _submit(self, one: _Running, place: int, need: Need) -> None:
        if need.stage not in self.stages:
            raise KeyError(f"No stage '{need.stage}'; there are {', '.join(self.stages)}")
        ticket = self._next_ticket
        self.stages[need.stage].submit(ticket, need)
        self._tickets[ticket] = (one, place)
        self._next_ticket += 1

    def _advance(self) -> list[_Running]:
        """One turn of every stage; the programs that now have all they waited for."""
        ready = []
        for stage in self.stages.values():
            for ticket, result in stage.advance():
                one, place = self._tickets.pop(ticket)
                if place < 0:
                    continue
                one.results[place] = result
                one.missing -= 1
                if not one.missing:
                    ready.append(one)
        return ready
