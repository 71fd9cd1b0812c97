"""`fk merge`: parts of one long run, as one report."""

from __future__ import annotations

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk merge level1.json level2.json --json llama.json")
@click.argument("results", nargs=-1, required=True, metavar="RESULT...")
@options.verbose
@options.report_json
def command(results: tuple[str, ...], json_path: str | None, verbose: bool) -> None:
    """Join reports of `fk kernels` that asked the same of different cases, on the same kind of machine.

    The exit code is that of one run of all parts: 1 if a row failed, 3 if one is unstable.
    """
    from fastkernels.judge.summary import merge
    from fastkernels.report import json, publish

    report = merge([json.load_kernels(path) for path in results])
    raise SystemExit(publish(report, json_path, verbose=verbose, is_run=False))
