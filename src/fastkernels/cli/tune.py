"""`fk tune`: measure all implementations on this device, write the table that chooses among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk tune --architecture llama")
@options.targets("every task.")
@options.architecture
@options.size
@options.device
@options.budget
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
@options.quiet
@options.report_json
def command(
    report_path: str | None, out: Path | None, json_path: str | None, quiet: bool, **arguments: Any
) -> None:
    """Measure all implementations of the kernels here, and write which one is used up to which size.

    A kernel without stable times stays undecided and keeps the entry that it has; so does every kernel that
    is not measured. The exit code is that of fk kernels --providers; interrupted, nothing is written.
    """
    from fastkernels import registry
    from fastkernels.cli.progress import showing
    from fastkernels.judge.summary import summarize
    from fastkernels.kernels.policy import slug
    from fastkernels.layout import data_dir, shown
    from fastkernels.report import files, json, publish
    from fastkernels.runner.kernel_trial import tune
    from fastkernels.runner.kernel_trial.request import KernelsRequest
    from fastkernels.runner.kernel_trial.run import run_kernels

    devices = data_dir("registry") / "devices"
    files.require_writable(out or devices / "DEVICE.yaml", "--out")
    if report_path is not None:
        options.refuse(
            ("size", "device", "budget_s", "quiet", "json_path"),
            "--from measures nothing, and takes the report as it is",
        )
        report = json.load_kernels(report_path)
        asked = {e.id for e in registry.find_tasks(arguments["targets"], None, arguments["architecture"])}
        rows = tuple(row for row in report.rows if row.task in asked)
        summary = summarize(rows, report.summary.wall_s, 0.0)
        report = report.model_copy(update={"rows": rows, "summary": summary})
    else:
        flags = dict.fromkeys(("level", "case_glob", "contract", "timeout_s", "seed"))
        request = KernelsRequest.parse(
            **arguments, **flags, candidates=(), self_test=False, providers=True, compile_check=False
        )
        with showing(quiet) as show:
            report = run_kernels(request, show)
    code = publish(report, json_path, is_run=report_path is None)

    def say(text: str) -> None:
        click.echo(text, err=json_path == "-")

    if not report.complete:
        say("interrupted: no table is written, since sizes or implementations are missing")
        raise SystemExit(code)
    device = report.environment.device if report.environment.device_type == "cuda" else "cpu"
    of_device = devices / f"{slug(device)}.yaml"
    path = out or of_device
    table = tune.tune(report)
    before = tune.entries(path if path.is_file() else of_device)
    for row in report.rows:
        if row.verdict == "UNSTABLE" and row.failure is not None:
            say(f"{row.candidate} {row.case}: {row.failure.message.partition('. ')[0]}")
    for kernel, choices in table.items():
        told = ", ".join(c.use + ("" if c.max_rows is None else f" up to {c.max_rows}") for c in choices)
        kept = f"keeps its entry {before[kernel]}" if kernel in before else "has no entry, as before"
        why = "no case has stable times of all implementations under one contract"
        say(f"{kernel}: {told or f'undecided, {kept}: {why}'}")
    if any(table.values()):
        tune.write(table, path, report, of_device)
        say(f"written to {shown(str(path))}")
    else:
        say("nothing is decided, and nothing written")
    raise SystemExit(code)
