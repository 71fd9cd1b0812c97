"""`fk history`: versions of candidates, their parents and results, from what was logged."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from fastkernels.cli.output import emit_json, json_option
from fastkernels.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from fastkernels.report.history import Version


@click.command(epilog="Examples: fk history · fk history mine --trend · fk history --diff 1f3a9c 8e02d4")
@click.argument("candidate", required=False, metavar="[CANDIDATE]")
@click.option("--target", "targets", multiple=True, metavar="TEXT", help="Only tasks and models with it.")
@click.option("--on", metavar="TEXT", help="Only devices with this in their name: h200.")
@click.option("--trend", is_flag=True, help="Every run in turn, with its band drawn.")
@click.option(
    "--diff",
    "pair",
    nargs=2,
    metavar="A B",
    help="What changed from one version to another: results case by case, and files.",
)
@json_option
def command(
    candidate: str | None,
    targets: tuple[str, ...],
    on: str | None,
    trend: bool,
    pair: tuple[str, str] | None,
    json_path: str | None,
) -> None:
    """What each version of each candidate came to, and the best of each task and device.

    A version is all of a candidate's files by their hash, its parent the one that was judged under the same
    name before it. Read from MLflow's store: the one under the state folder, or MLFLOW_TRACKING_URI.
    """
    if trend and pair:
        raise UsageError("--trend and --diff are two questions: ask one at a time")
    if pair and json_path:
        raise UsageError("--json: --diff is for people; the results of all versions: fk history --json PATH")
    from fastkernels.report import history, history_table, layout, store

    runs, notes = store.runs()
    found = history.versions(runs)
    if not found:
        why = "self-tests and implementations have no version"
        raise UsageError(f"None of {len(runs)} runs judged a candidate ({why}). See: fk kernels --help")
    for note in notes:
        click.echo(note, err=True)
    if pair:
        before, after = (_version(found, text) for text in pair)
        texts = [store.sources(version.runs[-1][0]) for version in (before, after)]
        layout.show(history_table.diff(before, after, (texts[0], texts[1])), sys.stdout)
        return
    found = _narrowed(found, candidate, targets, on)
    if json_path:
        emit_json(history_table.facts(found, notes), json_path)
    else:
        layout.show((history_table.trend if trend else history_table.lineage)(found), sys.stdout)


def _narrowed(
    found: list[Version], candidate: str | None, targets: tuple[str, ...], on: str | None
) -> list[Version]:
    names = dict.fromkeys(version.name for version in found)
    if candidate is not None:
        found = [version for version in found if fnmatchcase(version.name, candidate)]
        if not found:
            raise NotFoundError("candidate in the history", candidate, names, "fk history")

    def wanted(what: str, device: str) -> bool:
        asked = not targets or any(target in what for target in targets)
        return asked and (on is None or on.lower() in device.lower())

    every = dict.fromkeys(of for version in found for of in version.results)
    kept = {of for of in every if wanted(of.what, of.device)}
    if not kept:
        known = ", ".join(dict.fromkeys(f"{of.what} on {of.device}" for of in every))
        raise UsageError(f"Nothing of the history fits --target and --on. It has: {known}")
    for version in found:
        version.results = {of: result for of, result in version.results.items() if of in kept}
        version.runs = [
            (run, {of: result for of, result in results.items() if of in kept})
            for run, results in version.runs
        ]
    return [version for version in found if version.results]


def _version(found: list[Version], text: str) -> Version:
    """By the beginning of its hash, `NAME@HASH`, or `NAME` for its newest. NotFoundError, UsageError."""
    name, _, short = text.rpartition("@")
    named = [version for version in found if version.name == text]
    if named:
        return max(named, key=lambda version: version.runs[-1][0].at)
    fitting = [v for v in found if v.sha256.startswith(short) and name in ("", v.name)] if short else []
    if len(fitting) > 1:
        raise UsageError(f"'{text}' may be {', '.join(version.key for version in fitting)}: give more of one")
    if not fitting:
        raise NotFoundError("version", text, [version.key for version in found], "fk history")
    return fitting[0]
