"""The one protocol for every modality: a request is a generator that yields what it needs.

    def chat(tokens, sampling):   return (yield Tokens("lm", tokens, sampling))
    def caption(image, tokens):   features = yield [Call("vision", patch) for patch in image]
                                  return (yield Tokens("lm", splice(tokens, features), sampling))
    def listen(audio, need):      states = yield Call("encoder", audio)
                                  return (yield replace(need, source=states))

Each yield names a stage and its input, alone or in a list. The engine collects what is pending, the stages
group calls that fit together and launch them, and each generator resumes with its result (a list for a list).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from fastkernels.engine.core.request import Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.errors import RequestError
from fastkernels.nn.program import Call, Program


@dataclass(frozen=True, slots=True)
class Tokens:
    """Continue `tokens` in a TokenStage. forced: ids that are fed in place of the sampled ones. on_token:
    called with the request after each step that gave it a token. source: encoder states [S, D] for a model
    that attends to them. index: of the answer, where a prompt has several."""

    stage: str
    tokens: list[int]
    sampling: SamplingParams
    forced: list[int] | None = None
    on_token: Callable[[Request], None] | None = None
    source: Tensor | None = None
    index: int = 0


Need = Tokens | Call


class Stage(Protocol):
    """Takes needs under a ticket and gives results back under it, in any order."""

    def submit(self, ticket: int, need: Any) -> None:
        """Queue a need; a RequestError refuses this one and harms no other."""
        ...

    def advance(self) -> list[tuple[int, Any]]:
        """Launch work and return what is finished. Called as long as the stage has anything to do."""
        ...

    def cancel(self, ticket: int) -> None:
        """Forget a need that was submitted; nothing comes back under its ticket."""
        ...

    def abandon(self) -> None:
        """Forget everything that was submitted."""
        ...


@dataclass(eq=False, slots=True)
class _Running:
    """A generator, and the results of its last yield that are there."""

    number: int
    program: Program
    is_list: bool = False
    results: list[Any] | None = None
    tickets: dict[int, int] = field(default_factory=dict)  # what is missing: ticket -> place in the list

    def handover(self) -> Any:
        """What the program's yield returns; None starts it."""
        if self.results is None or self.is_list:
            return self.results
        return self.results[0]


class Engine:
    """Runs programs over named stages: all of some to their ends, or step by step."""

    def __init__(self, stages: dict[str, Stage]) -> None:
        self.stages = stages
        self._running: dict[int, _Running] = {}
        self._owners: dict[int, _Running] = {}  # of tickets
        self._ended: list[tuple[int, Any]] = []
        self._next_number = self._next_ticket = 0

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._ended

    def run(
        self,
        programs: Iterable[Program],
        on_done: Callable[[int], None] | None = None,
        raises: bool = False,
    ) -> list[Any]:
        """The return value of each program, in order. Nothing else may be running.

        A program that a RequestError ended has the error as its value; or, with `raises`, the first such
        error ends them all with its place, before a launch if a program begins with it. Any other exception
        ends them all, too: the stages are emptied, so that the engine can be used again.
        """
        assert self.is_idle, "programs of `start` are running"
        first, values = self._next_number, list[Any]()
        try:
            for program in programs:
                self.start(program)
                values.append(None)
                if raises and self._ended:
                    _raise_refusals(first, self._ended)
            while not self.is_idle:
                ended = self.step()
                if raises:
                    _raise_refusals(first, ended)
                for number, value in ended:
                    values[number - first] = value
                    if on_done is not None:
                        on_done(number - first)
        except BaseException:
            self.abandon()
            raise
        return values

    def start(self, program: Program) -> int:
        """Begin a program; its number comes back from the step in which it ends."""
        one = _Running(self._next_number, program)
        self._next_number += 1
        self._running[one.number] = one
        self._resume(one)
        return one.number

    def step(self) -> list[tuple[int, Any]]:
        """One turn of every stage: (number, return value or RequestError) of each program that has ended.

        Any other exception ends all programs and empties the stages.
        """
        try:
            for stage in self.stages.values() if self._running else ():
                for ticket, result in stage.advance():
                    one = self._owners.pop(ticket)
                    assert one.results is not None
                    one.results[one.tickets.pop(ticket)] = result
                    if not one.tickets:
                        self._resume(one)
        except BaseException:
            self.abandon()
            raise
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, number: int) -> None:
        """End a program without a result; nothing happens if it has ended."""
        one = self._running.pop(number, None)
        if one is not None:
            self._withdraw(one)
            one.program.close()

    def abandon(self) -> None:
        """End all programs and empty the stages."""
        self._running.clear()
        self._owners.clear()
        self._ended.clear()
        for stage in self.stages.values():
            stage.abandon()

    def _resume(self, one: _Running) -> None:
        """Hand over results until the program waits for a stage or ends."""
        refusal: RequestError | None = None
        try:
            while not one.tickets:
                if refusal is None:
                    needs = one.program.send(one.handover())
                else:
                    needs = one.program.throw(refusal)
                refusal = self._submit(one, needs)
        except StopIteration as stop:
            value = stop.value
        except RequestError as error:
            value = error
        except BaseException:
            del self._running[one.number]
            raise
        else:
            return
        del self._running[one.number]
        self._ended.append((one.number, value))

    def _submit(self, one: _Running, needs: Need | list[Need]) -> RequestError | None:
        """Queue what a program yielded; or the refusal, which the program gets in place of a result."""
        one.is_list = isinstance(needs, list)
        listed = needs if isinstance(needs, list) else [needs]
        one.results = [None] * len(listed)
        for place, need in enumerate(listed):
            if need.stage not in self.stages:
                self._withdraw(one)
                raise KeyError(f"No stage '{need.stage}'; there are {', '.join(self.stages)}")
            ticket = self._next_ticket
            try:
                self.stages[need.stage].submit(ticket, need)
            except RequestError as error:
                self._withdraw(one)
                return error
            self._next_ticket += 1
            self._owners[ticket] = one
            one.tickets[ticket] = place
        return None

    def _withdraw(self, one: _Running) -> None:
        """Take back what a program waits for."""
        for ticket in one.tickets:
            del self._owners[ticket]
            for stage in self.stages.values():
                stage.cancel(ticket)
        one.tickets.clear()


def _raise_refusals(first: int, ended: list[tuple[int, Any]]) -> None:
    """RequestError for the first program that one ended; `first`: the number of the program at place 0."""
    for number, value in ended:
        if isinstance(value, RequestError):
            raise RequestError(f"request {number - first}: {value}") from value
