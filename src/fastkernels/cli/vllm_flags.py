"""Flags of `vllm bench` that say what holds here anyway, so that its command lines can be pasted.

Each has one value that changes nothing; any other is refused with the reason, because what it asks for would
not be measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Held:
    """names: of the flag. value: what it may say. because: why nothing else."""

    names: tuple[str, ...]
    value: str | int | float
    because: str

    def option(self) -> Callable[..., Any]:
        return click.option(
            *self.names,
            type=type(self.value),
            metavar="X",
            expose_value=False,
            callback=self._check,
            help=f"vLLM's. Only {self.value}: {self.because}.",
        )

    def _check(self, context: click.Context, parameter: click.Parameter, given: Any) -> None:
        if given is not None and given != self.value:
            raise click.BadParameter(f"{given!r}: only {self.value!r} is served: {self.because}")


HELD = (
    Held(("--dataset-name",), "random", "prompts are random ids"),
    Held(("--random-range-ratio",), 0.0, "prompts and continuations have exact lengths"),
    Held(("--random-prefix-len", "--prefix-len"), 0, "prompts have nothing in common"),
    Held(("--n",), 1, "a request has one continuation"),
    Held(("--temperature",), 0.0, "continuations are greedy, so that runs can be compared"),
    Held(("--pipeline-parallel-size", "-pp"), 1, "every rank has a part of each layer"),
    Held(("--kv-cache-dtype",), "auto", "caches have the model's dtype"),
)
# Switches that change nothing.
IDLE = {
    "--trust-remote-code": "no code of a checkpoint runs",
    "--disable-log-stats": "nothing is logged",
    "--enable-chunked-prefill": "prompts are always computed in chunks where they exceed a step",
}


def accepted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these flags; it does not get their values."""
    for name, because in reversed(IDLE.items()):
        text = f"vLLM's. No effect: {because}."
        function = click.option(name, is_flag=True, expose_value=False, help=text)(function)
    for held in reversed(HELD):
        function = held.option()(function)
    return function
