"""`registry/cases/L*/*.jsonl`: the cases of a task, one on each line, under headings.

    {"architecture":"llama","config":"8b","size":"full","dtype":"bfloat16"}
    {"id":"llama-8b-T512-D4096-bf16","init":{...},"inputs":{"x":{"shape":[512,4096]}},"phase":"prefill"}

A heading is a line without an id: what the cases below it have in common, until the next heading. An input
has the case's dtype where it names none. The task is the file's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastkernels.errors import FileFormatError
from fastkernels.records import Case
from fastkernels.registry.load import read_jsonl

_SHARED = ("size", "dtype")
_PROVENANCE = ("architecture", "config", "phase")


def read_cases(path: Path) -> list[Case]:
    """FileFormatError with the line of the first that is no case of this task, or has an earlier one's id."""
    task = f"{path.parent.name}/{path.stem}"
    heading: dict[str, Any] = {}

    def whole(line: Any) -> Any:
        nonlocal heading
        if not isinstance(line, dict):
            return line
        if "id" not in line:
            heading = line
            return None
        found = {"task": task, **heading, **line}
        if "provenance" not in found:
            found["provenance"] = {name: found.pop(name) for name in _PROVENANCE if name in found}
        if "dtype" in found and isinstance(found.get("inputs"), dict):
            for spec in found["inputs"].values():
                if isinstance(spec, dict):
                    spec.setdefault("dtype", found["dtype"])
        return found

    found = read_jsonl(path, Case, whole)
    ids: set[str] = set()
    for number, case in found.items():
        if case.task != task or case.id in ids:
            problem = f"id {case.id} is taken" if case.id in ids else f"a case of {case.task}"
            raise FileFormatError(path, f"line {number}", problem)
        ids.add(case.id)
    return list(found.values())


def render(cases: Sequence[Case]) -> str:
    """The text of the file of a task's cases."""
    lines: list[dict[str, Any]] = []
    heading: dict[str, Any] = {}
    for case in cases:
        line = case.model_dump(mode="json", exclude_defaults=True)
        del line["task"]
        provenance = line.pop("provenance")
        line["phase"] = provenance.pop("phase")
        for spec in line["inputs"].values():
            if isinstance(spec, dict) and spec["dtype"] == case.dtype:
                del spec["dtype"]
        above = provenance | {name: line.pop(name) for name in _SHARED}
        if above != heading:
            lines.append(above)
            heading = above
        lines.append(line)
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
