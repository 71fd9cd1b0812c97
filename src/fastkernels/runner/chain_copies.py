"""What surrounds a launch of a whole chain: the copies of all its links, in the place of a single link's.

    copies = ChainCopies(device, links, results)        of links that were captured, and what they returned
    copies.ready(), copies.stage_parameters()           before the judge's clock starts
    copies.stage(), copies.keep_last(), copies.copy_out(names)

Everything lies where it lay when the chain was captured, so each kind is recorded once (measure/recorded.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from fastkernels.measure.recorded import Recorded, Repeated, Work
from fastkernels.runner.device import WorkerDevice
from fastkernels.runner.link import Link


class ChainCopies:
    def __init__(self, device: WorkerDevice, links: Sequence[Link], results: Sequence[Any]) -> None:
        self._links, self._results = links, results
        # Parameters that a module keeps in another form pass through torch's operators, which are not raw.
        self._record = device.recorded if all(link.copies_raw for link in links) else Repeated
        self._recorded: dict[Hashable, Recorded] = {}

    def ready(self) -> None:
        self._staging()
        self._keeping()

    def stage_parameters(self) -> None:
        """Copy the parameters in. Nobody waits for it, so it is not recorded."""
        for link in self._links:
            link.stage_parameters()

    def stage(self) -> None:
        """Copy the inputs in."""
        self._staging()()

    def keep_last(self) -> None:
        """Copy the results into the outbox, after a launch or once more."""
        self._keeping()()

    def copy_out(self, names: Sequence[str]) -> None:
        """Copy the named inputs, as they are now, into the echo box."""

        def work() -> None:
            for link in self._links:
                link.copy_out(names)

        self._once(("copy_out", *names), work)()

    def close(self) -> None:
        for recorded in self._recorded.values():
            recorded.close()
        self._recorded = {}

    def _staging(self) -> Recorded:
        def work() -> None:
            for link in self._links:
                link.stage()

        return self._once("stage", work)

    def _keeping(self) -> Recorded:
        def work() -> None:
            for link, result in zip(self._links, self._results, strict=True):
                link.keep(result)

        return self._once("keep", work)

    def _once(self, key: Hashable, work: Work) -> Recorded:
        if key not in self._recorded:
            self._recorded[key] = self._record(work)
        return self._recorded[key]
