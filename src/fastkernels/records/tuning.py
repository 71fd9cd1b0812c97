"""What `fk tune` saw: the time of each implementation of a kernel in each case, and how far the device's
table is from the best of them."""

from __future__ import annotations

from typing import Any, Literal

from fastkernels.records.base import Contract, Document, Printable, Record
from fastkernels.records.environment import Environment


class TunedRow(Record):
    """An implementation of a kernel in a case; the case's other kernels are those of the table."""

    task: str
    case: str
    kernel: str
    implementation: str
    us: float  # median, of one call
    chosen: bool  # whether the table has it run here
    contract: Contract  # `eager` beside `graph` in cases of which some implementation cannot be captured
    size: int  # of the kernel's call, by which the table may choose
    dtype: str  # of the call's first tensor, likewise
    noise_pct: float  # how far the interval of the median reaches
    difference: float  # of its results from those of the first that ran; 0 for that one
    absent: tuple[str, ...] = ()  # classes of production kernels that are not here; none in older reports


class Untimed(Record):
    """What has no time, and why. `implementation` None: the whole case, or all of the kernel in it."""

    task: str
    case: str
    kernel: str | None = None
    implementation: str | None = None
    why: Printable


class Behind(Record):
    """A case in which the table's choice is more than the bound slower than the best."""

    task: str
    case: str
    contract: Contract
    kernel: str
    chosen: str
    best: str
    ratio: float  # of their times
    why: str = ""  # where no table could choose better


class TuneSummary(Record):
    cases: int  # in which the table's choice and another have times; of two contracts each counts
    bound: float  # 1.03: so much slower than the best the choice may be
    share: float | None  # of these cases, in which it is not; None without one
    exceptions: tuple[Behind, ...]
    timed: int  # cases
    planned: int
    left: dict[str, int]  # task -> cases that the run did not come to
    wall_s: float


class TuneReport(Document):
    kind: Literal["tuning"] = "tuning"
    environment: Environment
    request: dict[str, Any]
    rows: tuple[TunedRow, ...]
    untimed: tuple[Untimed, ...] = ()
    summary: TuneSummary
    complete: bool = True  # False: interrupted
