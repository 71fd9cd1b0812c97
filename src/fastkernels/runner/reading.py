"""What one iteration of a party came to: pure data."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fastkernels.judge.metadata import Description


@dataclass(frozen=True)
class Reading:
    """One iteration of n links (1 where the call is not captured) or n ranks; tensors are [n, *shape].

    `ns` is the worker's word for one link, `claimed_ns` for all of them with what the clock reads for
    nothing. `window_ns` and `cpu_ns` are the judge's own, until the process stands still after the call: wall
    clock and CPU time of the process.
    `hidden`: the sample counts; `waits`: it does so although the launches were not hidden, because an eager
    call that waits for the device cannot be: the host's work is in its time.
    """

    ns: float
    claimed_ns: int
    window_ns: int
    cpu_ns: int | None
    hidden: bool
    clock_mhz: int | None
    threads: int
    described: tuple[dict[str, Description], ...]  # of each link or rank
    outputs: dict[str, Tensor]  # as they lay there when the clock had stopped
    echo: dict[str, Tensor]  # inputs as the call left them: valid until the next iteration
    flags: dict[str, str] = field(default_factory=dict)
    waits: bool = False
    made: bool = False  # somebody, perhaps the worker, made a process or a thread within the window
    lasting: bool = True  # what the call returned is what the outbox got, where that was asked
    strayed: bool = False  # results of links that did not run were written
    walk_ns: int | None = None  # over arguments of links that did not run (measure/walk.py)


def of_links(value: Tensor, links: list[int] | slice) -> Tensor:
    """These links of a tensor of an iteration; what all links share is there once."""
    return value if len(value) == 1 else value[links]
