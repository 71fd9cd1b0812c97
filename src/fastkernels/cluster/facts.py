"""What a node is. Nodes that judge parts of one run are alike, and have the code that asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fastkernels
from fastkernels.errors import MachineError
from fastkernels.layout import data_dir
from fastkernels.loader.candidates import CandidateSet
from fastkernels.loader.digest import digest
from fastkernels.measure import parts
from fastkernels.measure.environment import environment, git_revision, version
from fastkernels.records import Device, Environment, EvalReport, KernelReport, NodeUse
from fastkernels.runner.sandbox.isolation import common

_ALIKE = (*parts.ONE_MACHINE, "python", "cores")


@dataclass(frozen=True)
class Facts:
    environment: Environment
    ray: str | None
    devices: tuple[str, ...]  # names of its GPUs
    code: str  # of fastkernels, the registry and the baseline, wherever they lie


@dataclass(frozen=True)
class Look:
    """Asked of a node before it judges anything."""

    device: Device

    def judge(self, candidate: CandidateSet | None = None) -> Facts:
        return facts(self.device)


def facts(device: Device) -> Facts:
    names: tuple[str, ...] = ()
    if device == "cuda":
        import torch

        names = tuple(torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count()))
        if not names:
            raise MachineError("torch sees no GPU here. See: fk doctor")
    return Facts(environment(device), version("ray"), names, code())


@cache
def code() -> str:
    """One number for all that judges: two checkouts of one revision, one of them changed, have two."""
    return digest([Path(fastkernels.__file__).parent, data_dir("registry"), data_dir("baseline")])


def require_alike(found: Mapping[str, Facts]) -> None:
    """MachineError where a node has other code than this process, or where two nodes differ."""
    for node, its in found.items():
        if its.code != code():
            theirs, ours = its.environment.git_revision, git_revision(Path(__file__).parent)
            raise MachineError(
                f"node {node} has other files of fastkernels than this machine: revision {theirs} there, "
                f"{ours} here. Have the same revision on every node, and the same changes"
            )
        if len(set(its.devices)) > 1:
            raise MachineError(f"node {node} has unlike GPUs: {', '.join(sorted(set(its.devices)))}")
    nodes = list(found)
    for node in nodes[1:]:
        if told := parts.differing(_compared(found[nodes[0]]), _compared(found[node]), (*_ALIKE, "ray")):
            raise MachineError(
                f"nodes {nodes[0]} and {node} differ: {'; '.join(told)}. Results of unlike machines are not "
                "put into one report: start the cluster of equal ones"
            )


def _compared(its: Facts) -> dict[str, object]:
    return {**its.environment.model_dump(), "ray": its.ray}


def used(answers: Iterable[tuple[str, KernelReport | EvalReport]]) -> tuple[NodeUse, ...]:
    """Of each node that answered with reports, how many trials are in them."""
    found: dict[str, NodeUse] = {}
    for node, report in answers:
        before = found.get(node) or NodeUse(node=node, trials=0, environment=report.environment)
        trials = len(report.rows) if isinstance(report, KernelReport) else len(report.models)
        found[node] = before.model_copy(update={"trials": before.trials + trials})
    return tuple(found[node] for node in sorted(found))


def levels(reports: Iterable[KernelReport | EvalReport]) -> tuple[str, ...]:
    """What separated workers from the rest on every node."""
    found: tuple[str, ...] | None = None
    for report in reports:
        found = common(found, report.environment.isolation)
    return found or ()
