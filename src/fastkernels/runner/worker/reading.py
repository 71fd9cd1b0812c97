"""What one iteration of a worker came to: pure data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from fastkernels.judge.metadata import Description


@dataclass(frozen=True)
class Reading:
    """One iteration of n links (1 where the call is not captured) or n ranks; tensors are [n, *shape].

    `ns` is the worker's word for one link, `claimed_ns` for all of them with what the clock reads for
    nothing. `window_ns` is the judge's own, until the process stands still after the call (call_path.py).
    `strided`: of each link or rank, whether its inputs lay as in the model, where they may.
    `hidden`: the sample counts; `waits`: it does so although the launches were not hidden, because an eager
    call that waits for the device cannot be: the host's work is in its time.
    """

    ns: float
    claimed_ns: int
    window_ns: int
    hidden: bool
    clock_mhz: int | None
    threads: int
    described: tuple[dict[str, Description], ...]  # of each link or rank
    outputs: dict[str, Tensor]  # as they lay there when the clock had stopped
    echo: dict[str, Tensor]  # inputs as the call left them: valid until the next iteration
    flags: dict[str, str] = field(default_factory=dict)
    waits: bool = False
    lasting: bool = True  # what the call returned is what the outbox got, where that was asked
    strayed: bool = False  # results of links that did not run were written
    walk_ns: int | None = None  # over arguments of links that did not run (measure/walk.py)
    strided: tuple[bool, ...] = ()


def mean(readings: Sequence[Reading]) -> Reading:
    """One sample of calls that differ in the layout of their inputs: the numbers, beside the last tensors."""
    if len(readings) == 1:
        return readings[0]

    def of(number: str) -> float | None:
        found = [getattr(reading, number) for reading in readings]
        return None if None in found else sum(found) / len(found)

    numbers = {name: of(name) for name in ("ns", "claimed_ns", "window_ns", "walk_ns")}
    whole = {name: None if n is None else round(n) for name, n in numbers.items() if name != "ns"}
    clocks = [reading.clock_mhz for reading in readings if reading.clock_mhz is not None]
    return replace(
        readings[-1],
        **whole,
        ns=numbers["ns"],
        hidden=all(reading.hidden for reading in readings),
        waits=any(reading.waits for reading in readings),
        clock_mhz=min(clocks, default=None),
    )


def of_links(value: Tensor, links: list[int] | slice) -> Tensor:
    """These links of a tensor of an iteration; what all links share is there once."""
    return value if len(value) == 1 else value[links]
