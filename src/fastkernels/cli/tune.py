"""`fk tune`: time all implementations on this device, write the table that chooses among them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastkernels.cli import options

if TYPE_CHECKING:
    from fastkernels.records import Behind, TuneReport, Untimed
    from fastkernels.runner.tuning.table import Proposal

_MOST_SHOWN = 30  # rows of one kind; the report has all
_MOST_PROCESSES = 8
_FIGURES = re.compile(r"\d[\d.e+-]*")


@click.command(
    epilog="Examples: fk tune --architecture llama · fk tune --seconds 300 --json providers.json"
    " · fk tune --from providers.json --out table.yaml"
)
@options.targets("every task of levels 1 and 2 that calls kernels itself.")
@click.option(
    "--architecture", "architectures", multiple=True, metavar="A", help="Only its cases. Default: all."
)
@options.case
@options.size
@options.device
@click.option(
    "--budget",
    "budget_s",
    type=options.Number(min=0.01),
    default=0.2,
    show_default=True,
    metavar="SECONDS",
    help="Time for the readings of one case.",
)
@click.option(
    "--seconds",
    type=options.Number(min=1),
    metavar="SECONDS",
    help="End after this time, with cases of every task, the largest first. Default: all cases.",
)
@click.option(
    "--first-call",
    "first_call_s",
    type=options.Number(min=0.1),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Most time for an implementation's first call, in which code is compiled; else it has no time.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="Processes that make first calls side by side. Default: one for two cores, up to 8; 1 on a CPU.",
)
@click.option("--resume", is_flag=True, help="Go on with the report that --json names, where there is one.")
@click.option(
    "--from",
    "report_path",
    metavar="REPORT",
    help="Take a report of fk tune instead of measuring.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: the device's in registry/devices.",
)
@options.quiet
@options.report_json
def command(
    report_path: str | None, out: Path | None, json_path: str | None, quiet: bool, **arguments: Any
) -> None:
    """Time all implementations of the kernels here, and write which one is used up to which size.

    The report says in how many cases the table's choice is within 3 % of the best, and what was not timed.
    It is written after every case, so that a run that is cut off can be resumed. A time that readings do not
    agree on is no time. Where the table's choice has none in some case, the exit code is 3; a kernel whose
    choice has none in any case keeps its entry.

    Without --out, the device's table is written, where an entry changes and no case was left for want of
    time. --from takes a report with cases left, too. --out is written even where no entry changes. A run that
    was interrupted writes no table.
    """
    from fastkernels.kernels.policy import slug
    from fastkernels.layout import data_dir, shown
    from fastkernels.report import files, json
    from fastkernels.runner.tuning import table as tables

    devices = data_dir("registry") / "devices"
    files.require_writable(out or devices / "DEVICE.yaml", "--out")
    if report_path is not None:
        measuring = set(arguments) - {"targets", "architectures", "case_glob"}
        options.refuse(
            (*measuring, "quiet", "json_path", "targets", "architectures", "case_glob"),
            "--from measures nothing, and takes the report as it is",
        )
        report = json.load_tuning(report_path)
    else:
        report = _measured(json_path, quiet, **arguments)

    def say(text: str = "") -> None:
        click.echo(text, err=json_path == "-")

    tell(report, say)
    if not report.complete:
        say("interrupted: no table is written, since sizes or implementations are missing")
        raise SystemExit(130)
    device = report.environment.device if report.environment.device_type == "cuda" else "cpu"
    of_device = devices / f"{slug(device)}.yaml"
    path = out or of_device
    before = tables.entries(path if path.is_file() else of_device)
    found = tables.proposals(report) if tables.uses(report.rows) else []
    undecided = _undecided(report, found, before, say)
    _propose(found, say)
    chosen = {one.kernel: one.choices for one in found if one.choices}
    asked = out is not None or report_path is not None
    if chosen and report.summary.left and not asked:
        say("cases are left, so nothing is written: --out writes these entries, as does fk tune --from")
    elif chosen or (out is not None and of_device.is_file()):
        tables.write(chosen, path, report, of_device)
        same = "" if chosen else ", every entry as it was"
        say(f"written to {shown(str(path))}{same}")
    elif of_device.is_file():
        say(f"every entry stays as it is in {shown(str(of_device))}, and nothing is written")
    else:
        say("nothing is written: this device has no table, and the order in each kernel's file holds")
    if undecided:
        many = f"{len(undecided)} choices have" if len(undecided) > 1 else "1 choice has"
        say(
            f"exit code 3: {many} no time (a kernel in a case, not counted above). Under Not timed stands "
            "why; measure again where nothing else runs, or with a longer --first-call"
        )
    raise SystemExit(3 if undecided else 0)


def _undecided(
    report: TuneReport, found: Iterable[Proposal], before: Mapping[str, Any], say: Any
) -> list[tuple[str, str, str]]:
    """Kernels in cases in which what the table chooses has no time, and what becomes of their entries."""
    from fastkernels.runner.tuning.table import unchosen

    without = unchosen(report)
    decided = {one.kernel for one in found}
    for kernel, several in Counter(kernel for kernel, *_ in without).items():
        if kernel in decided:
            say(f"{kernel}: the table's choice has no time in {several} cases, and the others decide")
            continue
        kept = f"keeps its entry {before[kernel]}" if kernel in before else "has no entry, as before"
        say(f"{kernel}: undecided, {kept}: the table's choice has no time in any case")
    return without


def _measured(json_path: str | None, quiet: bool, resume: bool, **arguments: Any) -> TuneReport:
    from fastkernels.cli.progress import showing
    from fastkernels.errors import UsageError
    from fastkernels.measure.environment import require_device
    from fastkernels.report import json
    from fastkernels.runner.tuning.plan import TuneRequest
    from fastkernels.runner.tuning.run import run_tuning
    from fastkernels.settings import resolve

    settings = resolve(device=arguments.pop("device"), size=arguments.pop("size"))
    device = require_device(settings.device_asked)
    beside = min(_MOST_PROCESSES, max(1, (os.cpu_count() or 1) // 2)) if device == "cuda" else 1
    arguments["processes"] = arguments["processes"] or beside
    request = TuneRequest(device=device, size=settings.size_asked, **arguments)
    before, is_file = None, json_path not in (None, "-")
    if resume and not is_file:
        raise UsageError("--resume goes on with a report in a file: name it with --json")
    if resume and json_path and Path(json_path).is_file():
        before = json.load_tuning(json_path)

    def keep(report: TuneReport) -> None:
        if json_path and is_file:
            json.write(report, json_path)

    with showing(quiet) as show:
        report = run_tuning(request, show, keep, before)
    if json_path:
        json.write(report, json_path)
    return report


def tell(report: TuneReport, say: Any) -> None:
    """What was timed, how far the table's choices are from the best, and what has no time."""
    from fastkernels.report import layout

    summary, device = report.summary, report.environment.device
    say(f"fk tune on {device}: {summary.timed} of {summary.planned} cases timed, {summary.wall_s:.0f} s")
    if len(report.rows) <= _MOST_SHOWN:
        rows = [
            (row.task, row.case, row.kernel, row.implementation, f"{row.us:.4g}", "chosen" * row.chosen)
            for row in report.rows
        ]
        names = ("task", "case", "kernel", "implementation", "us", "")
        columns = [layout.Column(name, "", right=name == "us") for name in names]
        say(layout.plain([layout.table(columns, rows)]).rstrip())
    if summary.share is not None:
        say("a choice is the table's for a kernel in a case, under one contract: a case may have several")
        percent = (
            f"{100 * summary.share:.1f} % of {summary.cases} choices between two implementations or more"
        )
        say(f"within {100 * (summary.bound - 1):.0f} % of the best: {percent}")
    _exceptions(summary.exceptions, say)
    if lacking := layout.weaker((row.task, row.absent) for row in report.rows):
        say(layout.plain(lacking).rstrip())
    apart = Counter((row.kernel, row.implementation) for row in report.rows if _is_apart(row.difference))
    for (kernel, name), count in apart.items():
        say(f"{kernel} {name}: other results than the first in {count} cases, so it is not chosen there")
    _untimed(report, say)


def _is_apart(difference: float) -> bool:
    from fastkernels.runner.tuning.table import MOST_APART

    return difference > MOST_APART


def _untimed(report: TuneReport, say: Any) -> None:
    """By kernel, implementation and reason, figures aside, with the first case of each."""
    found: dict[tuple[str, str], list[Untimed]] = {}
    for one in report.untimed:
        what = f"{one.kernel} {one.implementation}" if one.implementation else one.task
        found.setdefault((what, _FIGURES.sub("#", one.why)), []).append(one)
    if found or report.summary.left:
        say("\nNot timed")
    for (what, _), several in list(found.items())[:_MOST_SHOWN]:
        more = f" and {len(several) - 1} more cases" if len(several) > 1 else ""
        say(f"{what}: {several[0].why} ({several[0].case}{more})")
    if len(found) > _MOST_SHOWN:
        say(f"and {len(found) - _MOST_SHOWN} further reasons: the report has all")
    if left := report.summary.left:
        say(f"no time was left for {', '.join(f'{n} cases of {task}' for task, n in left.items())}")


def _exceptions(found: Sequence[Behind], say: Any) -> None:
    for one in found[:_MOST_SHOWN]:
        why = f" ({one.why})" if one.why else ""
        what = f"{one.task} {one.case}" + (" (eager)" if one.contract == "eager" else "")
        say(f"  {one.ratio:.2f}  {what}: {one.kernel}={one.chosen}, best {one.best}{why}")
    if len(found) > _MOST_SHOWN:
        say(f"  and {len(found) - _MOST_SHOWN} more: the report has all")


def _propose(found: Iterable[Proposal], say: Any) -> None:
    from fastkernels.runner.tuning.table import WANTED

    found = list(found)
    if not found:
        return
    changes = any(one.choices for one in found)
    say("\nProposed" if changes else "")
    for one in found:
        if one.choices:
            told = ", ".join(_choice(choice) for choice in one.choices)
            say(f"{one.kernel}: {told}")
            say(f"  beyond the bound in {len(one.after)} of {one.cases} cases, before in {len(one.before)}")
        elif one.after:
            say(f"{one.kernel}: no entry is better in more of its {one.cases} cases")
    after = sorted((one for each in found for one in each.after), key=lambda one: -one.ratio)
    cases = sum(one.cases for one in found)
    share = 1 - len(after) / cases
    verb = "meets" if share >= WANTED else "misses"
    told = "with these" if changes else "with the entries as they are"
    percent = f"{100 * share:.1f} % of {cases} choices, those without an alternative among them,"
    say(f"{told}, {percent} are within the bound: {verb} {WANTED:.0%}")
    _exceptions(after, say)


def _choice(choice: Any) -> str:
    conditions = [f"up to {choice.max_rows}"] if choice.max_rows is not None else []
    conditions += [choice.dtype] if choice.dtype else []
    return f"{choice.use} ({', '.join(conditions)})" if conditions else choice.use
