"""`fk kernels`: tier 1, one task at a time."""

from __future__ import annotations

from typing import Any

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk kernels --target rms_norm --candidates examples/candidates")
@options.targets("every task that a candidate replaces.")
@options.level
@options.architecture
@options.case
@options.size
@click.option(
    "--golden",
    metavar="DIR",
    help="Golden folder of fk capture: cases that choose experts are judged with captured routing too.",
)
@click.option(
    "--candidates",
    "candidates",
    multiple=True,
    metavar="DIR",
    help="A candidate's folder, a folder of candidates, or a stack `top:below`. Default: tasks/candidate.",
)
@options.device
@click.option(
    "--contract", type=click.Choice(["graph", "eager", "host"]), help="Default: graph on CUDA, host on CPU."
)
@options.self_test
@click.option(
    "--providers", is_flag=True, help="Compare the kernels' implementations with the baseline's choice."
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first trial that fails; report what was done.")
@options.budget
@options.timeout
@click.option(
    "--compile-check/--no-compile-check",
    default=True,
    show_default=True,
    help="Whether torch.compile(fullgraph=True) of each candidate is tried.",
)
@click.option(
    "--track",
    type=click.Choice(["open", "authored"]),
    default="open",
    show_default=True,
    help="`authored`: only candidates that spend half their device time in kernels of their own.",
)
@click.option("--seed", type=int, help="Seed of the inputs. Default: fresh and secret, stored in the report.")
@options.new_folder(
    "--reproduce",
    text="Write the first failure of each candidate in each task: inputs, expected and actual outputs, and a "
    "script that runs the candidate on them. A new or empty folder.",
)
@options.verbose
@options.quiet
@options.report_json
def command(json_path: str | None, verbose: bool, quiet: bool, **arguments: Any) -> None:
    """Judge candidate kernels against the baseline: right in every call, and how fast."""
    from fastkernels.cli.progress import saying, showing
    from fastkernels.report import publish
    from fastkernels.runner.kernel_trial.request import KernelsRequest
    from fastkernels.runner.kernel_trial.run import run_kernels

    request = KernelsRequest.parse(**arguments)
    with showing(quiet) as show:
        report = run_kernels(request, show, say=saying)
    raise SystemExit(publish(report, json_path, request.sources, verbose=verbose))
