"""`fk merge`: parts of one long run, as one report."""

from __future__ import annotations

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk merge level1.json level2.json --json llama.json")
@click.argument("results", nargs=-1, required=True, metavar="RESULT...")
@options.report_json
def command(results: tuple[str, ...], json_path: str | None) -> None:
    """Join reports of `fk kernels` that asked the same of different cases, on the same kind of machine."""
    import sys

    from fastkernels.judge.summary import merge
    from fastkernels.report import json, table

    report = merge([json.load_kernels(path) for path in results])
    table.show(report, sys.stderr if json_path == "-" else sys.stdout)
    if json_path:
        json.write(report, json_path)
