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
report_json = click.option(
    "--json", "json_path", metavar="PATH", help="Write the report as JSON; `-` is stdout."
)
