"""What a language model takes beside the ids of a prompt, as `LLM` and its intake see it.

Listener     audio that its layers attend to, {"audio": samples} with each prompt          (listener.py)
Towers       media whose rows stand in the prompt, {"image": [...]} or none                (towers.py)

Either way a request is calls of further stages, and what their results add to its tokens.
"""

from __future__ import annotations

from typing import Any, Protocol

from fastkernels.engine.core.ledger import Ledger
from fastkernels.engine.programs.call_graphs import CallGraphs
from fastkernels.engine.programs.program import Stage, Tokens
from fastkernels.nn.program import Call


class Brought(Protocol):
    """What one request brings."""

    @property
    def calls(self) -> list[Call]: ...

    @property
    def shift(self) -> int:
        """Positions of tokens behind it, less their places."""
        ...

    def added(self, need: Tokens, results: list[Any]) -> Tokens:
        """The need, with the results of the calls."""
        ...


class Beside(Protocol):
    graphs: dict[str, CallGraphs]  # by the name of their stage

    def stages(self, ledger: Ledger) -> dict[str, Stage]:
        """What serves the calls; it waits while the ledger's requests hold enough results."""
        ...

    def largest(self) -> object:
        """The largest launch: the caches leave room for it."""
        ...

    def take(self, ids: list[int], given: Any) -> tuple[list[int], Brought | None]:
        """The prompt's ids as the model gets them, and what the caller's multi_modal_data brings; given is
        None without any. RequestError for what the model does not take, or lacks."""
        ...

    def stats(self) -> dict[str, Any]: ...
