"""Cases of the registry by their ids; one thread for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fastkernels import registry
from fastkernels.audit.subject import Subject
from fastkernels.records import Case


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny cases gain nothing by threads, which wait for each other: with two of them, on two busy cores,
    L4/mixtral took 313 s (95 s of CPU time) in place of 27 s (8 s)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def case_of(task: str, case_id: str) -> Case:
    (found,) = [case for case in registry.cases(task) if case.id == case_id]
    return found


def subject_of(case: Case) -> Subject:
    return Subject(registry.task(case.task), case, "cpu")
