"""Options that several verbs have, with one name, one meaning and one help text."""

from __future__ import annotations

import click

level = click.option("--level", type=click.IntRange(1, 4), help="Only tasks of this level.")
architecture = click.option("--architecture", metavar="A", help="Only tasks and cases of this architecture.")
case = click.option(
    "--case",
    "case_glob",
    metavar="GLOB",
    help="Only these cases; without a wildcard, ids that contain the text.",
)
seed = click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**63 - 1),
    default=0,
    show_default=True,
    help="Of random weights and random ids.",
)
size = click.option("--size", type=click.Choice(["tiny", "full"]), help="Default: full on CUDA, tiny on CPU.")
device = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Default: cuda where there is one."
)


def writable(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """Callback of an option that names a report's file: whether it can be written is seen at once."""
    if path:
        from fastkernels.report import files

        files.require_writable(path, option.opts[0])
    return path


report_json = click.option(
    "--json",
    "json_path",
    metavar="PATH",
    callback=writable,
    help="Write the report as JSON; `-` is stdout.",
)
