"""What a candidate's source alone tells, before any of it runs: verdicts, in tier 1 and in tier 3, and which
models import it."""

from __future__ import annotations

from collections.abc import Mapping

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.judge.verdict import Verdict
from fastkernels.loader import check
from fastkernels.loader.candidates import CandidateSet
from fastkernels.records import Failure
from fastkernels.registry import uses
from fastkernels.registry.schema import Architecture

_SIGNATURE_RULES = {"missing-class", "init-signature", "forward-signature"}
# Findings that a run shows better (a syntax error, an exit), or that concern nobody's measurement.
_LEFT_TO_THE_RUN = {"syntax", "exit", "unknown-task", "absolute-import"}


def from_source(found: CandidateSet, task: str) -> Verdict | None:
    """For wrong names or signatures and for what no candidate may do, in files that this task may reach;
    None where only a run can tell."""
    reached = uses.reached(task)
    tasks = set(found.files)
    for layer in found.layers:
        for finding in check.check(layer):
            if finding.severity != "error" or finding.rule in _LEFT_TO_THE_RUN:
                continue
            of_task = finding.file.relative_to(layer).with_suffix("").as_posix()
            if of_task in tasks and of_task not in reached:
                continue
            if finding.rule == "unreadable" and of_task not in tasks:
                continue  # a helper: who imports it fails
            failure = Failure(message=finding.message, file=str(finding.file), line=finding.line)
            if finding.rule in _SIGNATURE_RULES:
                return Verdict.failed("SIGNATURE_MISMATCH", failure)
            # An overlay would take the baseline's, or what nobody has looked over.
            if finding.rule in ("unreadable", "excessive"):
                return Verdict.failed("IMPORT_ERROR", failure)
            return Verdict.failed("TAMPERED", failure, finding.rule)
    return None


def imported_by(found: CandidateSet, models: Mapping[str, Architecture]) -> dict[str, list[str]]:
    """Model -> the candidate's tasks that it imports. UsageError where none imports any: nothing would be
    measured but the baseline."""
    reached = {model: found.imported_by(architecture.task) for model, architecture in models.items()}
    if any(reached.values()):
        return reached
    others = [entry.id for entry in registry.architectures() if found.imported_by(entry.task)]
    raise UsageError(
        f"{found.name} replaces {', '.join(found.files)}, which {' or '.join(models)} never imports. Models "
        f"that do: {', '.join(others) or 'none is registered'}. By itself it is judged by fk kernels"
    )
