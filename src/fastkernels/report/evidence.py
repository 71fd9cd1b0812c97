"""How well an architecture is known: the level that the reports in a checkout's `benchmarks/` show.

    parity     tiny random weights agree with its reference library on a CPU, it is judged valid against
               itself, and its real configuration was walked to cases (its L4 task's among them)
    measured   at full size on a GPU it is judged valid against itself, and timed beside its reference
    audited    on a GPU the admission audit took a full-size case of every variant of its L1 and L2 tasks, its
               own or another architecture's, and refused none of its own

Each level asks for those before it. Reports are known by what is in them, not by their names: what is missing
is said with a command that writes it to its usual place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastkernels import registry
from fastkernels.layout import data_dir
from fastkernels.registry.schema import Architecture
from fastkernels.report.json import text_of

Reports = Sequence[dict[str, Any]]
_ON_GPU = "benchmarks/DEVICE"  # whoever measures knows it: h200


@dataclass(frozen=True)
class Evidence:
    """`level`: the highest reached, empty where there is none. `missing`: what the next one lacks."""

    level: str
    missing: tuple[str, ...] = ()


def evidence(architecture: Architecture, reports: Reports | None = None) -> Evidence:
    """Of `reports`, or of all that lie in this checkout; an installed package has none."""
    found = committed(data_dir("benchmarks")) if reports is None else reports
    reached = ""
    for level, lacks in _LEVELS.items():
        if missing := tuple(lacks(architecture, found)):
            return Evidence(reached, missing)
        reached = level
    return Evidence(reached)


@lru_cache
def committed(folder: Path) -> Reports:
    """Every JSON report below a folder."""
    return tuple(json.loads(text_of(path)) for path in files(folder))


def files(folder: Path) -> list[Path]:
    """Where its reports lie; large ones are compressed."""
    return sorted([*folder.rglob("*.json"), *folder.rglob("*.json.gz")])


def _lacks_parity(architecture: Architecture, reports: Reports) -> Iterator[str]:
    rows = [row for row in _rows(reports, "parity") if row["architecture"] == architecture.id]
    again = "python benchmarks/parity.py --out benchmarks/cpu/parity.json"
    if not rows:
        yield f"no parity report: {again}"
    elif not any(row["passed"] and not row["failed"] for row in rows):
        yield f"its parity tests fail. When they are mended: {again}"
    elif "tests/parity/" not in (library := architecture.reference["parity"]) and all(
        row["failed"] + row["skipped"] for row in rows
    ):
        lack = f"parity tests were skipped, perhaps for want of {library}"
        yield f"{lack}: make EXTRAS=dev,reference, then {again}"
    if not _is_valid(architecture, reports, "tiny", "cpu"):
        yield f"no valid self-test on a CPU: {_self_test(architecture, 'tiny', 'cpu', 'benchmarks/cpu')}"
    if not registry.cases(architecture.task, "full", architecture.id):
        yield f"no case of {architecture.task} at full size"


def _lacks_measurement(architecture: Architecture, reports: Reports) -> Iterator[str]:
    if not _is_valid(architecture, reports, "full", "cuda"):
        yield f"no valid self-test on a GPU: {_self_test(architecture, 'full', 'cuda', _ON_GPU)}"
    beside = [one for one in _of_kind(reports, "vs_reference") if one["size"] == "full" and one["ratios"]]
    if architecture.id not in {one["architecture"] for one in beside if _device(one) == "cuda"}:
        yield (
            f"never timed beside its reference on a GPU: python benchmarks/vs_reference.py {architecture.id} "
            f"--out {_ON_GPU}/{architecture.id}_vs_reference.json"
        )


def _lacks_audits(architecture: Architecture, reports: Reports) -> Iterator[str]:
    on_gpu = [one for one in reports if _device(one) == "cuda"]
    found = {(row["task"], row["case"]): row["admitted"] for row in _rows(on_gpu, "admission")}
    unseen = False
    for task in sorted(registry.tasks_of(architecture)):
        if task.startswith(("L3/", "L4/")):
            continue
        cases, own = registry.cases(task, "full"), registry.cases(task, "full", architecture.id)
        refused = [case.id for case in own if found.get((task, case.id)) is False]
        audited = {case.variant for case in cases if (task, case.id) in found}
        never = {case.variant for case in own} - audited
        if refused:
            yield f"{task}: the audit does not admit {', '.join(refused)}"
        if never:
            unseen = True
            yield f"{task}: no audit of {', '.join(sorted(never))}"
    if unseen:
        yield (
            f"an audit, on a GPU: fk audit --architecture {architecture.id} --json R, then "
            f"python benchmarks/admission.py R --out {_ON_GPU}/audit_full.json.gz --resume"
        )


_LEVELS: dict[str, Callable[[Architecture, Reports], Iterator[str]]] = {
    "parity": _lacks_parity,
    "measured": _lacks_measurement,
    "audited": _lacks_audits,
}


def _self_test(architecture: Architecture, size: str, device: str, folder: str) -> str:
    """The command that makes its report."""
    name = architecture.id
    return (
        f"fk eval --self-test --model {name} --size {size} --device {device} "
        f"--json {folder}/eval_{name}_self_test.json"
    )


def _is_valid(architecture: Architecture, reports: Reports, size: str, device: str) -> bool:
    """Whether the baseline was judged against itself, and valid."""
    return any(
        model["model"] == architecture.id and model["size"] == size and model["valid"]
        for report in _of_kind(reports, "eval")
        if report["request"]["candidates"] == "self-test" and _device(report) == device
        for model in report["models"]
    )


def _of_kind(reports: Reports, kind: str) -> Iterable[dict[str, Any]]:
    return (report for report in reports if report.get("kind") == kind)


def _rows(reports: Reports, kind: str) -> Iterable[dict[str, Any]]:
    return (row for report in _of_kind(reports, kind) for row in report["rows"])


def _device(report: dict[str, Any]) -> str:
    return report.get("environment", {}).get("device_type", "")
