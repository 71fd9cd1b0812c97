"""What the side of a kernel (kernel_side.py) answers, as the judge reads it: these fields, and no others."""

from __future__ import annotations

from pydantic import Field

from fastkernels.records import Printable, Record
from fastkernels.runner.mapped import Shown
from fastkernels.runner.results import Result

MOST_NS = 10**15  # eleven days: a duration beyond is garbage


class _Answer(Record):
    """What a worker says; anything else is a crashed worker."""


class Built(_Answer):
    prepares: bool
    put_back: tuple[Printable, ...] = ()


class First(_Answer):
    outputs: dict[str, Result]
    kernels: dict[str, str]
    put_back: tuple[Printable, ...] = ()


class Captured(_Answer):
    """`outputs`: what each link of the chain returns; `shown`: where, of a chain that is captured."""

    captured: bool
    detail: Printable
    kernels: dict[str, str]
    outputs: list[dict[str, Result]]
    shown: Shown | None


class Timed(_Answer):
    ns: int = Field(gt=0, lt=MOST_NS)


class Inspected(_Answer):
    """`outputs`: of the call, or of every rank's; none of a chain, described when it was captured."""

    outputs: list[dict[str, Result]]
    threads: int
    flags: dict[str, str]


class Compiled(_Answer):
    status: str = Field(pattern="^(ok|graph break|error)$")
    detail: Printable
    traces: int = Field(ge=0)


class Launch(_Answer):
    name: Printable
    ns: int = Field(ge=0, lt=MOST_NS)


class Launches(_Answer):
    kernels: list[Launch]
