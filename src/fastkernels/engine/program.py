"""The one protocol for every modality: a request is a generator that yields what it needs.

    def chat(tokens, sampling):   return (yield Tokens("lm", tokens, sampling))
    def caption(image, tokens):   features = yield [Call("vision", patch) for patch in image]
                                  return (yield Tokens("lm", splice(tokens, features), sampling))

Each yield names a stage and its input, alone or in a list. The engine collects what is pending, the stages
group calls that fit together and launch them, and each generator resumes with its result (a list for a list).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from fastkernels.engine.requests import SamplingParams
from fastkernels.errors import RequestError


@dataclass(frozen=True, slots=True)
class Tokens:
    """Continue `tokens` in a TokenStage. forced: ids that are fed in place of the sampled ones."""

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
    results: list[Any] | None = None
    missing: int = 0

    def handover(self) -> Any:
        """What the program's yield returns; None starts it."""
        if self.results is None or self.is_list:
            return self.results
        return self.results[0]


class Engine:
    """Runs programs over named stages until all are done."""

    def __init__(self, stages: dict[str, Stage]) -> None:
        self.stages = stages
        self._tickets: dict[int, tuple[_Running, int] | None] = {}  # None: nobody waits for it any more
        self._next_ticket = 0

    def run(self, programs: Iterable[Program], on_done: Callable[[int], None] | None = None) -> list[Any]:
        """The return value of each program, in order; a program that a RequestError ended has the error as
        its value.

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
        refusal: RequestError | None = None
        try:
            while not one.missing:
                if refusal is None:
                    needs = one.program.send(one.handover())
                else:
                    needs = one.program.throw(refusal)
                refusal = self._submit(one, needs)
        except StopIteration as stop:
            values[one.index] = stop.value
        except RequestError as error:
            values[one.index] = error
        else:
            return
        if on_done is not None:
            on_done(one.index)

    def _submit(self, one: _Running, needs: Need | list[Need]) -> RequestError | None:
        """Queue what a program yielded; or the refusal, which the program gets in place of a result."""
        one.is_list = isinstance(needs, list)
        listed = needs if isinstance(needs, list) else [needs]
        one.results, one.missing = [None] * len(listed), len(listed)
        tickets = []
        for place, need in enumerate(listed):
            if need.stage not in self.stages:
                raise KeyError(f"No stage '{need.stage}'; there are {', '.join(self.stages)}")
            try:
                self.stages[need.stage].submit(self._next_ticket, need)
            except RequestError as error:
                self._tickets.update(dict.fromkeys(tickets, None))  # the others come back to nobody
                one.missing = 0
                return error
            self._tickets[self._next_ticket] = (one, place)
            tickets.append(self._next_ticket)
            self._next_ticket += 1
        return None

    def _advance(self) -> list[_Running]:
        """One turn of every stage; the programs that now have all they waited for."""
        ready = []
        for stage in self.stages.values():
            for ticket, result in stage.advance():
                owner = self._tickets.pop(ticket)
                if owner is None:
                    continue
                one, place = owner
                assert one.results is not None
                one.results[place] = result
                one.missing -= 1
                if not one.missing:
                    ready.append(one)
        return ready
