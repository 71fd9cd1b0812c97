"""How inputs get into a worker, and results out of it, where the judge does not hold its device
(gpu_arguments.py): by memory that it shares with the worker, whose own code copies.

On a CPU these are all calls, and on a GPU those that are checked before anything is timed. The copies lie in
the judge's window of a call, and the request and the answer do, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fastkernels.records import TensorSpec
from fastkernels.runner.transfer.shared_memory import Arena, Want


class Boxes:
    """`outbox` and `echo` as the worker has them (KernelSide.boxes)."""

    def __init__(self, inbox: Arena, outbox: Arena, echo: Arena) -> None:
        self._inbox, self._outbox, self._echo = inbox, outbox, echo
        self._delivered: list[str] = []

    @classmethod
    def create(
        cls,
        device: str,
        inbox: Arena,
        wanted: Iterable[Want],
        inputs: Mapping[str, TensorSpec],
        links_of: Callable[[str], int],
    ) -> Boxes:
        outbox = Arena.create(wanted, device, writable=True)
        return cls(inbox, outbox, Arena.like(inputs, device, links_of, writable=True))

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (*self._outbox.descriptors, *self._echo.descriptors)

    @property
    def tickets(self) -> dict:
        return {"outbox": self._outbox.ticket, "echo": self._echo.ticket}

    def clear(self) -> None:
        """Nothing is there that could be taken for results."""
        self._outbox.poison()

    def deliver(self, inputs: Mapping[str, Tensor]) -> None:
        """The judge's arguments, [n, *shape], once its clock runs: before, a candidate could compute with
        them."""
        self._delivered = list(inputs)
        self._inbox.write(inputs)

    def take(self) -> Arena:
        """The results, in memory that no worker reaches; the worker stands still after its answer. The
        arguments are gone from then on."""
        kept = self._outbox.copied()
        self._inbox.poison(self._delivered)
        return kept

    def last(self, kept: Arena) -> bool:
        """Whether the results are still those that were taken."""
        return torch.equal(kept.bytes, self._outbox.bytes)

    def results(self) -> Arena:
        """As the worker left them last; valid until `clear`."""
        return self._outbox

    def echoed(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The named inputs as they are after the call, [n, *shape]; valid until the next one."""
        return {name: self._echo.tensors[name] for name in names}

    def close(self) -> None:
        self._outbox.close()
        self._echo.close()
