"""Tier 1: rows, summary and report of `fk kernels`."""

from __future__ import annotations

from typing import Any, Literal

from fastkernels.records.base import Contract, Document, Printable, Record
from fastkernels.records.environment import Environment, NodeUse


class Place(Record):
    """The element of an output that is farthest from right, and how many others are wrong. Values as text:
    JSON knows no infinity."""

    output: str  # `out.0`, or the name of a tensor that the call changes
    index: tuple[int, ...]  # the first number is the row
    expected: str
    got: str
    allowed: float | None = None  # what an element may be off, where all share the error that is allowed
    beyond: int  # elements that are more off, or that differ where nothing is allowed
    elements: int  # of the output

    def __str__(self) -> str:
        row = f"row {self.index[0]}, " if len(self.index) > 1 else ""
        most = "" if self.allowed is None else f", allowed {self.allowed:.3g} off"
        at = f"{self.output}[{', '.join(map(str, self.index))}]"
        return (
            f"{row}{at}: expected {self.expected}, got {self.got}{most}; "
            f"{self.beyond} of {self.elements} elements are beyond"
        )


class Failure(Record):
    """What a user needs to mend a candidate: the message, the place in the results and in the code, and what
    it printed."""

    message: Printable
    place: Place | None = None
    distribution: str | None = None  # of the inputs of the call that failed
    file: Printable | None = None
    line: int | None = None
    output: Printable = ""
    trace: Printable = ""  # the whole traceback, where `output` begins at the candidate's own first frame

    @property
    def told(self) -> str:
        """What went wrong, and in which element, for a person."""
        if self.distribution is None:
            return self.message
        where = f": {self.place}" if self.place else ""
        return f"{self.message}\non {self.distribution} inputs{where}"


class KernelShare(Record):
    """A kernel that a call launched, and its share of the call's device time."""

    name: str  # qualified, without types: `at::native::vectorized_elementwise_kernel`
    origin: Literal["authored", "vendor", "torch", "inductor", "nccl"]
    share: float


class Integrity(Record):
    """What the judge saw beside a candidate's claims, in us; of three: the candidate, baselines A and A'."""

    beyond_us: tuple[float, float, float]  # medians of what its windows hold beyond the claimed times
    hidden_us: float  # of it beyond both baselines', at least (bootstrap), where that is nearest to the bound
    may_hide_us: float  # the bound: more is IMPLAUSIBLE
    alone_us: tuple[float, float, float] | None = None  # medians of links of a chain that ran alone
    walk_us: tuple[float, float, float] | None = None  # of walks over arguments of links that did not run
    looks: tuple[int, int] | None = None  # at GPUs while all stood still: that found one busy, and all


class Unclaimed(Record):
    """What an UNSTABLE trial saw: too wide an interval for a number. All of it may lie beyond a limit all the
    same."""

    speedup: float
    speedup_ci: tuple[float, float]
    baseline_us: float
    candidate_us: float
    noise_pct: float
    samples: int
    waits: bool = False  # the candidate waits for the device in its call


class ProfiledKernel(Record):
    """What Nsight Compute counted of one launch; None: not on this GPU. Percentages of a peak."""

    name: Printable  # qualified, without types
    us: float
    dram_pct: float | None = None
    dram_gb_s: float | None = None
    l2_pct: float | None = None
    compute_pct: float | None = None  # of the busiest unit of the SMs
    occupancy_pct: float | None = None  # warps that are resident, of those that an SM can hold
    occupancy_limit_pct: float | None = None  # those that could be
    occupancy_limited_by: str | None = None  # `registers`, `shared memory` or `warps of a block`
    registers: int | None = None  # of a thread
    waves: float | None = None  # of blocks over all SMs


class Profile(Record):
    """One call under Nsight Compute (`--profile ncu`), from flushed caches."""

    kernels: tuple[ProfiledKernel, ...]  # in the order of their launches
    limit: Printable  # one sentence: what limits the one that takes most of the time

    @property
    def us(self) -> float:
        return sum(kernel.us for kernel in self.kernels)

    def mean(self, name: str) -> float | None:
        """A percentage of the whole call, weighted by time; None where a kernel has none."""
        values = [(getattr(kernel, name), kernel.us) for kernel in self.kernels]
        if not self.us or any(value is None for value, _ in values):
            return None
        return sum(value * us for value, us in values) / self.us


class Finding(Record):
    """What compute-sanitizer found at one place."""

    what: Printable  # `Invalid __global__ write of size 4 bytes`
    kernel: Printable
    file: Printable | None = None
    line: int | None = None
    count: int = 1
    authored: bool = False  # the kernel is one of the candidate's own


class Sanitized(Record):
    """One call of a candidate under one tool of compute-sanitizer (`--sanitize`)."""

    candidate: str
    task: str
    case: str
    tool: str
    errors: int | None = None  # as the tool counts them, also those without a kernel; None: no answer
    findings: tuple[Finding, ...] = ()  # by kernel and line
    problem: Printable | None = None  # why there is no answer


class KernelRow(Record):
    """One trial: a candidate (or implementation, or the baseline) on one case, against the baseline."""

    task: str
    variant: str
    case: str
    candidate: str  # name of the candidate, `impl:triton`, or `self-test`
    verdict: str  # `PASSED`, `WRONG(value)`, ... see judge/verdict.py
    failure: Failure | None = None
    contract: Contract
    calls: int = 1
    speedup: float | None = None  # median of paired ratios baseline / candidate; only with PASSED
    speedup_ci: tuple[float, float] | None = None
    baseline_us: float | None = None  # medians
    candidate_us: float | None = None
    baseline_p20_p80_us: tuple[float, float] | None = None
    candidate_p20_p80_us: tuple[float, float] | None = None
    baseline_impl: str | None = None  # which implementations the baseline ran, `rms_norm=triton`
    noise_pct: float | None = None  # |A/A - 1| of two baseline processes beside this trial, upper bound
    significant: bool | None = None  # the win or loss exceeds noise and interval; None: none is claimed
    samples: int = 0
    dropped: int = 0
    sm_clock_mhz: int | None = None
    error_ratio: float | None = None  # worst candidate error / allowed error; <= 1 passes
    baseline_error: float | None = None  # rel_l2 of the baseline against the float64 oracle, worst output
    candidate_error: float | None = None
    roofline_pct: float | None = None  # floor time from bytes and flops / candidate time
    capture: Literal["yes", "no", "n/a"] = "n/a"  # of the candidate, whatever the baseline can
    baseline_capture: Literal["yes", "no", "n/a"] = "n/a"
    capture_detail: str | None = None  # why the candidate cannot be captured
    links: int = 1  # calls of the captured chain; durations are of one of them
    compile: Literal["ok", "graph break", "recompiles", "error", "n/a"] = "n/a"
    compile_detail: str | None = None
    origins: dict[str, float] | None = None  # share of device time: authored, vendor, torch, inductor, nccl
    kernels: tuple[KernelShare, ...] | None = None  # those that take the most device time, largest first
    profile: Profile | None = None  # only with `--profile ncu`
    integrity: Integrity | None = None  # of timed rows
    unclaimed: Unclaimed | None = None  # only with UNSTABLE, where nothing but its width speaks against it
    timed: bool = True
    iterations_checked: int = 0
    absent: tuple[str, ...] = ()  # classes of production kernels that the baseline had none of; none in older

    @property
    def authored(self) -> float:
        """Share of device time in kernels that the candidate itself defines; 0 where nobody looked."""
        return (self.origins or {}).get("authored", 0.0)


class KernelSummary(Record):
    rows: int
    passed: int
    failed: int
    unstable: int  # UNSTABLE and INVALID_BASELINE; what none of the three counts is UNSUPPORTED
    # Over timed PASSED rows of `contract`, weighted by calls; None with several candidates, which compete.
    # Reports before 2026-11-23 have no `contract`: theirs is over all rows, and before 2026-11-26 over all
    # candidates.
    geomean_speedup: float | None
    contract: Contract | None = None
    other_contracts: int = 0  # timed PASSED rows under another contract, which never mix with these
    wall_s: float
    measuring_share: float  # of wall_s, spent in trials; what neither share holds is starting and planning
    compiling_share: float = 0.0  # of wall_s, spent in imports and first calls, in which code is compiled
    looking_share: float = 0.0  # of wall_s, spent on the columns `compile`, `origins` and `kernels`


class CandidateFiles(Record):
    """What was judged under a candidate's name, so that nobody takes other files for it later."""

    name: str
    folders: tuple[str, ...]  # highest first
    sha256: str  # of all their files when the run began (loader/digest.py)


class KernelReport(Document):
    kind: Literal["kernels"] = "kernels"
    environment: Environment
    request: dict[str, Any]  # the command's arguments after all defaults
    rows: tuple[KernelRow, ...]
    candidates: tuple[CandidateFiles, ...] = ()  # none in older reports, and of none without one
    shadowed: tuple[str, ...] = ()  # candidate files that no longer reach the tasks above them
    notes: tuple[str, ...] = ()  # what could not be measured as asked, and why
    sanitized: tuple[Sanitized, ...] = ()  # only with `--sanitize`
    nodes: tuple[NodeUse, ...] = ()  # only with `--cluster`
    summary: KernelSummary
    complete: bool = True  # False: interrupted, rows so far; or --fail-fast, rows until the first failure

    @property
    def failed_fast(self) -> bool:
        return not self.complete and bool(self.request.get("fail_fast") and self.summary.failed)
