"""`fk audit`: whether tasks may be judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk audit --target rms_norm")
@options.targets("every task.")
@options.level
@options.architecture
@options.case
@click.option(
    "--size",
    type=options.Choice(["tiny", "full"]),
    help="Default: full on CUDA, tiny on CPU; levels 3 and 4 always tiny.",
)
@options.device
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**62),
    default=0,
    show_default=True,
    help="Seed of the inputs.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Cases beside each other, on all GPUs that are visible, where their memory is free.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=options.Number(min=0.1),
    default=1200,
    show_default=True,
    metavar="SECONDS",
    help="Most time for a case, with --processes 2 and more: what takes longer is not audited.",
)
@click.option(
    "--resume",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="REPORT",
    help="Leave out the cases that this report of an audit has.",
)
@options.quiet
@options.report_json
def command(json_path: str | None, quiet: bool, **arguments: Any) -> None:
    """Audit tasks: would the judge accept a wrong kernel, or refuse a right one?

    Trivial candidates and mutants of the baseline must fail, other implementations must pass, and between the
    two must lie a margin. Without --case, one case of each variant is audited; --case '*' takes all. Exit
    code 1 if a task or a case is not admitted.
    """
    from fastkernels.audit.run import AuditRequest, run_audit
    from fastkernels.cli.progress import showing
    from fastkernels.report import publish

    if arguments["processes"] == 1:
        options.refuse(["timeout_s"], "cases are ended in processes of their own: --processes 2 or more")
    request = AuditRequest.parse(**arguments)
    with showing(quiet) as show:
        report = run_audit(request, show)
    raise SystemExit(publish(report, json_path))
