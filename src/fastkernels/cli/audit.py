"""`fk audit`: whether tasks may be judged by."""

from __future__ import annotations

from typing import Any

import click


@click.command(epilog="Example: fk audit --target rms_norm")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="PATTERN",
    help="Task, alias or glob, with `:variant` if wanted. Default: every task.",
)
@click.option("--level", type=click.IntRange(1, 4), help="Only tasks of this level.")
@click.option("--architecture", metavar="A", help="Only tasks and cases of this architecture.")
@click.option(
    "--case",
    "case_glob",
    metavar="GLOB",
    help="Only these cases; without a wildcard, ids that contain the text.",
)
@click.option("--size", type=click.Choice(["tiny", "full"]), help="Default: full on CUDA, tiny on CPU.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: cuda where there is one.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs.")
@click.option("--json", "json_path", metavar="PATH", help="Write the report as JSON; `-` is stdout.")
def command(json_path: str | None, **arguments: Any) -> None:
    """Audit tasks: would the judge accept a wrong kernel, or refuse a right one?

    Trivial candidates and mutants of the baseline must fail, other implementations must pass, and between the
    two must lie a margin. Exit code 1 if a task is not admitted.
    """
    from fastkernels.audit.run import AuditRequest, run_audit
    from fastkernels.cli.progress import counting
    from fastkernels.report import publish

    request = AuditRequest.parse(**arguments)
    with counting() as count:
        report = run_audit(request, count)
    raise SystemExit(publish(report, json_path))
