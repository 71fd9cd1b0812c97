"""The verdict that a candidate's source alone gives, before any of it runs: in tier 1 and in tier 3."""

from __future__ import annotations

from fastkernels.judge.verdict import Verdict
from fastkernels.loader import check
from fastkernels.loader.candidates import CandidateSet
from fastkernels.records import Failure
from fastkernels.registry import uses

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
