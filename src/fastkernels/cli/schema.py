"""`fk schema`: the JSON Schema of what `--json` writes."""

from __future__ import annotations

from typing import Literal

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk schema kernels > kernels.schema.json")
@click.argument("kind", type=options.Choice(["kernels", "eval", "gate", "audit", "tuning"]))
def command(kind: Literal["kernels", "eval", "gate", "audit", "tuning"]) -> None:
    """Print the JSON Schema of the report of `fk kernels`, `fk eval`, `fk gate`, `fk audit`, or
    of `fk tune` (tuning)."""
    from fastkernels.report.schema import text

    click.echo(text(kind), nl=False)
