"""`fk eval`: tier 3, whole models with the candidates in place, and MacroEval."""

from __future__ import annotations

from typing import Any

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk eval --model llama --size tiny --candidates examples/candidates/faster")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="PATTERN",
    help="Architecture id or glob, Hugging Face id, or folder with config.json. Default: the suite's.",
)
@options.narrowing("--category", help="Only architectures of this category.")
@click.option(
    "--suite",
    type=options.Choice(["smoke", "default", "full"]),
    help="Which architectures and workloads. Default: default.",
)
@options.size
@click.option(
    "--workload", "workloads", multiple=True, metavar="NAME", help="Only these workloads of the suite."
)
@click.option(
    "--candidates",
    "candidate_paths",
    multiple=True,
    metavar="DIR",
    help="One set of candidates; `top:below` stacks several. Default: tasks/candidate.",
)
@options.self_test
@options.device
@click.option(
    "--rounds",
    type=click.IntRange(min=2),
    help="Alternating rounds of each workload; a latency takes six at least. Default by size, and for some "
    "seconds more while the ratio is uncertain.",
)
@click.option(
    "--tp",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Ranks of each engine: tensor parallel, a GPU (on a CPU a process) for each.",
)
@click.option(
    "--ep",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="As many as --tp: a rank has whole experts, in place of a slice of each.",
)
@click.option("--eager", is_flag=True, help="Without CUDA graphs, on both sides.")
@click.option("--seed", type=int, help="Seed of prompts and weights. Default: fresh, stored in the report.")
@click.option(
    "--timeout",
    "timeout_s",
    type=options.Number(min=0.1),
    metavar="SECONDS",
    help="Most time for a side to start, and for each call. Default: 300 at tiny, 600 and 1200 at full.",
)
@options.cluster
@options.verbose
@options.quiet
@options.report_json
def command(json_path: str | None, verbose: bool, quiet: bool, cluster: str | None, **arguments: Any) -> None:
    """Judge candidates inside whole models: correctness, speed, coverage, MacroEval."""
    from fastkernels.cli.progress import saying, showing
    from fastkernels.report import publish
    from fastkernels.runner.models.eval import run_eval
    from fastkernels.runner.models.eval_request import EvalRequest

    with showing(quiet) as show:
        if cluster is None:
            request = EvalRequest.parse(**arguments)
            report = run_eval(request, show, saying)
        else:
            from fastkernels.cluster.models import run_eval_on
            from fastkernels.cluster.nodes import connected

            with connected(cluster) as there:
                show(f"looking at the nodes of {cluster}")
                request = EvalRequest.parse(**arguments, there=there.device(arguments["device"]))
                report = run_eval_on(there, request, show, saying)
    raise SystemExit(publish(report, json_path, request.sources, verbose=verbose))
