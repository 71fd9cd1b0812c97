"""Cases of the registry by their ids."""

from __future__ import annotations

from fastkernels import registry
from fastkernels.audit.subject import Subject
from fastkernels.records import Case


def case_of(task: str, case_id: str) -> Case:
    (found,) = [case for case in registry.cases(task) if case.id == case_id]
    return found


def subject_of(case: Case) -> Subject:
    return Subject(registry.task(case.task), case, "cpu")
