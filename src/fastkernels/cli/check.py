"""`fk check`: look over candidate files without running them."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(epilog="Example: fk check examples/candidates/faster")
@click.option(
    "--candidates",
    "more",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The same as PATH, as other commands have it.",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
def command(paths: tuple[Path, ...], more: tuple[Path, ...]) -> None:
    """Check candidates' syntax, names, signatures and forbidden patterns; nothing is imported.

    PATH is a candidate, a folder of candidates or one file; without one, tasks/candidate. Each finding is one
    line, FILE:LINE: severity rule: message. Exit code 1 if there are errors.
    """
    from fastkernels.loader.check import check
    from fastkernels.settings import candidates_dir

    findings = [finding for path in (*paths, *more) or (candidates_dir(),) for finding in check(path)]
    for finding in findings:
        click.echo(f"{finding.file}:{finding.line}: {finding.severity} {finding.rule}: {finding.message}")
    errors = sum(finding.severity == "error" for finding in findings)
    click.echo(f"{errors} errors, {len(findings) - errors} warnings", err=True)
    raise SystemExit(1 if errors else 0)
