"""`fk stubs`: write candidate files that pass, to be made faster."""

from __future__ import annotations

from pathlib import Path

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk stubs --target rms_norm --output my_candidates/first")
@options.targets("every task.")
@options.level
@options.tasks_of
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where L1 .. L4 are made. Default: tasks/candidate.",
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def command(
    targets: tuple[str, ...], level: int | None, architecture: str | None, output: Path | None, force: bool
) -> None:
    """Write candidates that pass: right classes, signatures and contract, the baseline's results."""
    from fastkernels import registry
    from fastkernels.loader.stubs import write_stubs
    from fastkernels.settings import candidates_dir

    entries = registry.find_tasks(targets, level, architecture)
    if not entries:
        raise registry.no_task(targets, level, architecture)
    written, kept = write_stubs(entries, output or candidates_dir(), force)
    for file in written:
        click.echo(file)
    for file in kept:
        click.echo(f"{file} exists and stays as it is (--force overwrites it)", err=True)
