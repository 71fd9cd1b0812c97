"""`fk kernels`: tier 1, one task at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastkernels.cli import options

if TYPE_CHECKING:
    from fastkernels.progress import Show
    from fastkernels.records import KernelReport
    from fastkernels.runner.kernel_trial.request import KernelsRequest

_HERE = "asked of one machine, without --cluster"


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
    "--contract",
    type=options.Choice(["graph", "eager", "host"]),
    help="How calls are timed: on the device, replayed in CUDA graphs or called one by one, or by the host's "
    "clock. Default: graph on CUDA, host on CPU.",
)
@options.self_test
@click.option(
    "--providers",
    is_flag=True,
    help="Judge all implementations of the kernels, ours and libraries', against the baseline's choice.",
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
    type=options.Choice(["open", "authored"]),
    default="open",
    show_default=True,
    help="`authored`: only candidates that spend half their device time in kernels of their own.",
)
@click.option("--seed", type=int, help="Seed of the inputs. Default: fresh and secret, stored in the report.")
@click.option(
    "--profile",
    type=options.Choice(["ncu"]),
    help="Nsight Compute on a call of each timed row that passed: bandwidth, occupancy, what limits it. "
    "Behind the verdicts, and without the judge's isolation.",
)
@click.option(
    "--sanitize",
    is_flag=True,
    help="One call of each candidate in each task under compute-sanitizer's memcheck, racecheck, initcheck "
    "and synccheck. Behind the verdicts, and without the judge's isolation.",
)
@options.new_folder(
    "--reproduce",
    text="Write the first failure of each candidate in each task: inputs, expected and actual outputs, and a "
    "script that runs the candidate on them. A new or empty folder.",
)
@options.cluster
@options.verbose
@options.quiet
@options.report_json
def command(
    json_path: str | None,
    verbose: bool,
    quiet: bool,
    profile: str | None,
    sanitize: bool,
    cluster: str | None,
    **arguments: Any,
) -> None:
    """Judge candidate kernels against the baseline: right in every call, and how fast."""
    from fastkernels.cli.progress import saying, showing
    from fastkernels.report import publish
    from fastkernels.runner.kernel_trial.request import KernelsRequest
    from fastkernels.runner.kernel_trial.run import run_kernels

    if cluster is not None:
        options.refuse(("providers", "golden", "reproduce", "profile", "sanitize"), _HERE)
        request, report = _on_nodes(cluster, quiet, arguments)
        raise SystemExit(publish(report, json_path, request.sources, verbose=verbose))
    request = KernelsRequest.parse(**arguments)
    if profile or sanitize:
        _require_tools(profile, sanitize, request)
    with showing(quiet) as show:
        report = run_kernels(request, show, say=saying)
        if profile or sanitize:
            report = _looked_at(report, request, profile, sanitize, show)
    raise SystemExit(publish(report, json_path, request.sources, verbose=verbose))


def _on_nodes(address: str, quiet: bool, arguments: dict[str, Any]) -> tuple[KernelsRequest, KernelReport]:
    from fastkernels.cli.progress import saying, showing
    from fastkernels.cluster.kernels import run_kernels_on
    from fastkernels.cluster.nodes import connected
    from fastkernels.runner.kernel_trial.request import KernelsRequest

    with showing(quiet) as show, connected(address) as cluster:
        show(f"looking at the nodes of {address}")
        request = KernelsRequest.parse(cluster.device(arguments["device"]), **arguments)
        return request, run_kernels_on(cluster, request, show, saying)


def _require_tools(profile: str | None, sanitize: bool, request: KernelsRequest) -> None:
    """Before anything runs. UsageError, MachineError."""
    from fastkernels.errors import MachineError, UsageError
    from fastkernels.profiling import tools

    flag = "--sanitize" if sanitize else "--profile"
    if request.self_test or request.providers:
        raise UsageError(f"{flag} is for candidates; of the baseline: fk profile --target TASK")
    if request.device != "cuda":
        raise MachineError(f"{flag} looks at CUDA kernels: it needs a CUDA device")
    for tool in (*([tools.NCU] if profile else []), *([tools.SANITIZER] if sanitize else [])):
        tool.path()


def _looked_at(
    report: KernelReport, request: KernelsRequest, profile: str | None, sanitize: bool, show: Show
) -> KernelReport:
    """What was asked for beside the verdicts. Interrupted, the report so far, not complete."""
    from fastkernels.profiling import of_report
    from fastkernels.runner.kernel_trial.request import candidate_sets

    if not report.complete and not report.failed_fast:
        return report
    sets = {found.name: found for found in candidate_sets(request)}
    try:
        if profile:
            report = of_report.with_profiles(report, sets, show)
        return of_report.with_sanitizer(report, sets, show) if sanitize else report
    except KeyboardInterrupt:
        return report.model_copy(update={"complete": False})
