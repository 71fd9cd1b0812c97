"""`fk tune`: measure all implementations on this device, write the table that chooses among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk tune --architecture llama")
@click.option("--target", "targets", multiple=True, metavar="PATTERN", help="Only these tasks.")
@options.architecture
@options.size
@options.device
@click.option(
    "--budget",
    "budget_s",
    type=options.Number(min=0.01),
    metavar="SECONDS",
    help="Time for sampling one timed case; more where few calls fit into it, or say little. Default: 1.",
)
@click.option(
    "--from",
    "report_path",
    metavar="REPORT",
    help="Take a report of fk kernels --providers instead of measuring.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: the device's in registry/devices.",
)
def command(report_path: str | None, out: Path | None, **arguments: Any) -> None:
    """Measure all implementations of the kernels here, and write which one is used up to which size."""
    from fastkernels import registry
    from fastkernels.cli.progress import counting
    from fastkernels.kernels.policy import slug
    from fastkernels.layout import data_dir, shown
    from fastkernels.report import files, json
    from fastkernels.runner import tune
    from fastkernels.runner.kernels import run_kernels
    from fastkernels.runner.plan import KernelsRequest

    devices = data_dir("registry") / "devices"
    files.require_writable(out or devices / "DEVICE.yaml", "--out")
    if report_path is not None:
        options.refuse(
            ("size", "device", "budget_s"), "--from measures nothing, and takes the report as it is"
        )
        report = json.load_kernels(report_path)
        asked = {e.id for e in registry.find_tasks(arguments["targets"], None, arguments["architecture"])}
        rows = tuple(row for row in report.rows if row.task in asked)
        report = report.model_copy(update={"rows": rows})
    else:
        flags = dict.fromkeys(("level", "case_glob", "contract", "timeout_s", "seed"))
        request = KernelsRequest.parse(
            **arguments, **flags, candidates=(), self_test=False, providers=True, compile_check=False
        )
        with counting() as count:
            report = run_kernels(request, count)
    device = report.environment.device if report.environment.device_type == "cuda" else "cpu"
    path = out or devices / f"{slug(device)}.yaml"
    table = tune.tune(report)
    tune.write(table, path, report)
    for kernel, choices in table.items():
        told = (c.use + ("" if c.max_rows is None else f" up to {c.max_rows}") for c in choices)
        click.echo(f"{kernel}: {', '.join(told) or 'undecided, not all were timed under one contract'}")
    click.echo(f"written to {shown(str(path))}")
