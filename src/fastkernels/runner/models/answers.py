"""What differs between models by the kind of their answer: inputs, a timed run, and discrepancies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from fastkernels.runner.models.sides import SideHandle, Sides


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the candidate is from the baseline. d, ruin: of each sample and of unrelated ones, 0 same ..
    1 unrelated."""

    d: list[float]
    ruin: list[float]
    kl: float | None = None


class Answers(Protocol):
    """One kind of answer. Inputs are drawn by the judge, fresh for every run; only it knows their seed."""

    side: ClassVar[str]  # what answers them, `module:Class`
    noise_changes: list[dict[str, Any]]  # of a side's arguments: benign other numerics

    def engine(self, workloads: Sequence[Any], alone: bool) -> dict[str, Any]:
        """Arguments of both engines that the kind has. alone: each has all memory of a GPU in its turn."""
        ...

    def inputs(self, workload: Any) -> Any:
        """Fresh inputs of one run."""
        ...

    def given(self, inputs: Any) -> AbstractContextManager[dict[str, Any]]:
        """The arguments of a call that hands inputs over."""
        ...

    def warm_up(self, side: SideHandle, workload: Any) -> None:
        """An untimed run: graphs, compiled kernels, allocator."""
        ...

    def timed(self, side: SideHandle, inputs: Any, workload: Any) -> tuple[float, Any]:
        """Seconds by the judge's own clock until all answers are there, and what the audit needs of them.
        SideFailure where answers are missing."""
        ...

    def amount(self, workload: Any) -> float:
        """Throughput: the units of a run, to be divided by its seconds. Latency: what divides its seconds."""
        ...

    def kept(self, inputs: Any, baseline: Any, candidate: Any) -> Any:
        """Of a timed run of both sides what an audit may ask for; all inputs of all runs may be gigabytes.
        `baseline`, `candidate`: what `timed` gave."""
        ...

    def audit(self, baseline: SideHandle, runs: Sequence[Any]) -> Any:
        """What is to be known of the candidate's answers in each of the timed runs of a workload, of which
        `kept` kept something: being right only while compared does not help, nor in half of the runs."""
        ...

    def audited(self, found: Any) -> list[float]:
        """The discrepancies of what `audit` found, once the noise runs are there."""
        ...

    def repeated(self, runs: Sequence[Any]) -> float:
        """Share of the baseline's answers that whoever repeats their last tokens has right, too."""
        ...

    def proof(self) -> Any:
        """Inputs of a side's eager proof pass."""
        ...

    def compare(self, sides: Sides, report: Callable[[str], None]) -> Comparison:
        """Both sides on the same samples, which `again` keeps using."""
        ...

    def again(self, side: SideHandle) -> list[float]:
        """d of a noise run of the baseline on the samples of `compare`."""
        ...
