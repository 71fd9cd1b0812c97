"""Which cases a revision has: `python -m fastkernels.gate.inventory`, run from the revision's source.

Filters come as JSON on stdin, cases go as JSON to stdout. A process of its own, because the registry that it
reads is that of the package that it was imported from. No torch.
"""

from __future__ import annotations

import json
import sys

from fastkernels import registry
from fastkernels.errors import NotFoundError
from fastkernels.records import Case, Record, Size


class Filters(Record):
    """What `fk gate` was asked to compare."""

    targets: tuple[str, ...] = ()
    level: int | None = None
    architecture: str | None = None
    case_glob: str | None = None
    size: Size | None = None


def cases(filters: Filters) -> list[Case]:
    """The cases here. What is not known here has none: the other side may know it."""
    found: dict[tuple[str, str], Case] = {}
    for pattern in filters.targets or (None,):
        try:
            patterns = [] if pattern is None else [pattern]
            entries = registry.find_tasks(patterns, filters.level, filters.architecture)
        except NotFoundError:
            continue
        for entry in entries:
            for case in registry.cases(entry, filters.size, filters.architecture, filters.case_glob):
                found[case.task, case.id] = case
    return list(found.values())


if __name__ == "__main__":
    found = cases(Filters.model_validate_json(sys.stdin.read()))
    json.dump([case.model_dump(mode="json") for case in found], sys.stdout)
