"""What changes between uniform, captured and zipf routing: loads, hot experts, times."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fastkernels.capture.again import same_choice
from fastkernels.capture.loads import Load, loads
from fastkernels.capture.times import Times, times
from fastkernels.loader import golden
from fastkernels.records import Capture, TokenPhase
from fastkernels.report import json


@dataclass(frozen=True)
class Comparison:
    folder: str
    capture: Capture
    loads: tuple[Load, ...]
    same_choice: tuple[int, int]  # (token, layer) pairs that choose the same experts again, and all
    device: str  # on which they chose again
    times: tuple[Times, ...] = ()

    def captured(self, phase: TokenPhase) -> Load:
        return next(load for load in self.loads if (load.skew, load.phase) == ("captured", phase))

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kind": "routing",
            "golden": self.folder,
            "capture": self.capture.model_dump(mode="json", by_alias=True),
            "loads": [_facts(load) for load in self.loads],
            "same_choice": {"device": self.device, "same": self.same_choice[0], "all": self.same_choice[1]},
            "times_us": [asdict(each) for each in self.times],
        }


def compare(folder: str, device: str, report: str | Path | None = None) -> Comparison:
    """Read a golden folder and, for times, a report of `fk kernels`. UsageError, FileFormatError."""
    values = golden.read(folder)
    durations = times(json.load_kernels(report)) if report is not None else []
    again = same_choice(values, device)
    return Comparison(folder, values.capture, tuple(loads(values, folder)), again, device, tuple(durations))


def _facts(load: Load) -> dict[str, Any]:
    return {
        "routing": load.skew,
        "phase": load.phase,
        "reached": load.reached,
        "imbalance": _list(load.imbalance_L),
        "entropy_bits": _list(load.entropy_L),
        "share": [_list(share_E) for share_E in load.share_LE],
    }


def _list(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]
