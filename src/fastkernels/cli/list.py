"""`fk list`: what exists. No torch."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import Any

import click

from fastkernels.cli import options
from fastkernels.cli.output import emit_json, heading, json_option, table
from fastkernels.errors import NotFoundError, UsageError

KINDS = ("tasks", "architectures", "workloads", "candidates")
_NARROWS = {
    "tasks": ("level", "architecture"),
    "architectures": ("category", "as_map"),
    "candidates": ("folder",),
}


@click.command(
    epilog="Examples: fk list · fk list tasks 'L1/*norm*' · fk list architectures --map · fk list --json -"
)
@click.argument("kind", default="tasks", metavar=f"[{'|'.join(KINDS)}]")
@click.argument("pattern", required=False, metavar="[PATTERN]")
@options.level
@options.tasks_of
@options.narrowing("--category", metavar="C", help="Only architectures of this category.")
@click.option("--map", "as_map", is_flag=True, help="Architectures with the tasks that each is made of.")
@click.option(
    "--candidates", "folder", metavar="DIR", help="Where to look for candidates. Default: tasks/candidate."
)
@json_option
def command(
    kind: str,
    pattern: str | None,
    level: int | None,
    architecture: str | None,
    category: str | None,
    as_map: bool,
    folder: str | None,
    json_path: str | None,
) -> None:
    """List tasks (the default), architectures, workloads or candidates. A PATTERN alone is one of tasks."""
    is_kind = kind in KINDS
    if not is_kind:
        if pattern is not None or difflib.get_close_matches(kind, KINDS, cutoff=0.8):
            raise NotFoundError("kind of list", kind, KINDS, "fk list --help")
        kind, pattern = "tasks", kind
    if as_map or (category and kind == "tasks"):
        kind = "architectures"
    others = {name for of, names in _NARROWS.items() if of != kind for name in names}
    options.refuse(others, f"narrows nothing in a list of {kind}. See: fk list --help")
    if kind == "tasks":
        rows = _tasks(pattern, level, architecture, is_kind)
    elif kind == "architectures":
        rows = _architectures(pattern, category, as_map)
    elif kind == "workloads":
        rows = _workloads(pattern)
    else:
        rows = _candidates(pattern, folder)
    if json_path:
        emit_json({"kind": kind, "rows": rows}, json_path)
    elif as_map:
        _print_map(rows)
    elif rows:
        cells = [[_cell(value) for value in row.values()] for row in rows]
        table(list(rows[0]), cells, whole="fk show NAME, in a pipe, and by --json -")
    else:
        click.echo(f"No {kind} here.", err=True)


def _tasks(
    pattern: str | None, level: int | None, architecture: str | None, said_tasks: bool
) -> list[dict[str, Any]]:
    """`said_tasks`: without it a pattern that is like no task may be meant for a kind of list."""
    from fastkernels import registry

    try:
        entries = registry.find_tasks([pattern] if pattern else [], level, architecture)
    except NotFoundError as error:
        if said_tasks or error.kind != "task" or error.suggestions:
            raise
        kinds = ", ".join(KINDS)
        raise UsageError(f"No kind of list and no task '{pattern}'. Kinds: {kinds}. See: fk list") from None
    rows = []
    for entry in entries:
        cases = registry.cases(entry)
        rows.append(
            {
                "task": entry.id,
                "variants": list(entry.variants),
                "cases": len(cases),
                "timed": sum(case.timed for case in cases),
                "summary": entry.summary,
            }
        )
    return rows


def _architectures(pattern: str | None, category: str | None, as_map: bool) -> list[dict[str, Any]]:
    from fastkernels import registry
    from fastkernels.report.evidence import evidence

    rows = []
    for entry in registry.find_architectures([pattern] if pattern else [], category):
        row = {
            "architecture": entry.id,
            "name": entry.name,
            "category": entry.category,
            "evidence": evidence(entry).level,
            "checkpoint": entry.checkpoint,
            "configurations": list(entry.configs),
        }
        if as_map:
            reached = registry.tasks_of(entry)
            row["tasks"] = [task.id for task in registry.tasks() if task.id in reached]
        rows.append(row)
    return rows


def _workloads(pattern: str | None) -> list[dict[str, Any]]:
    from fastkernels import registry

    named = {
        suite.name: {
            (name, size)
            for architecture in registry.find_architectures(suite.architectures)
            for size in architecture.default_config
            for name in suite.names(architecture, size)
        }
        for suite in registry.suites()
    }
    return [
        {
            "workload": entry.name,
            "size": entry.size,
            "kind": entry.kind,
            "requests": entry.requests,
            "each": entry.each,
            "unit": entry.unit,
            "suites": [suite for suite, of_it in named.items() if (entry.name, entry.size) in of_it],
            "summary": entry.summary,
        }
        for entry in registry.workloads([pattern] if pattern else ())
    ]


def _candidates(pattern: str | None, folder: str | None) -> list[dict[str, Any]]:
    from fastkernels.loader.candidates import discover
    from fastkernels.settings import candidates_dir

    rows = [
        {
            "candidate": found.name,
            "tasks": sorted(found.files),
            "layers": [str(layer) for layer in found.layers],
        }
        for found in discover([folder or candidates_dir()])
    ]
    if pattern is None:
        return rows
    kept = [row for row in rows if fnmatchcase(row["candidate"], pattern) or pattern in row["tasks"]]
    if not kept:
        raise NotFoundError("candidate", pattern, [row["candidate"] for row in rows], "fk list candidates")
    return kept


def _print_map(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        heading(f"{row['architecture']} ({row['name']}, {row['category']})")
        for level in range(4, 0, -1):
            names = [task.partition("/")[2] for task in row["tasks"] if task.startswith(f"L{level}/")]
            click.echo(f"  L{level}  {' · '.join(names)}")


def _cell(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
