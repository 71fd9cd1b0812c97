"""`fk score`: MacroEval again, from the raw samples and rounds of report files. No torch, no GPU."""

from __future__ import annotations

from typing import Literal

import click

from fastkernels.cli import options


@click.command(
    epilog="Example: fk score benchmarks/h200/eval_llama_self_test.json --f 0.5 --empty-family drop"
)
@click.argument("results", nargs=-1, required=True, metavar="RESULT...")
@click.option(
    "--f",
    type=options.Number(0, 1, min_open=True),
    help="Ruin point of all models, instead of the measured ones.",
)
@click.option(
    "--lambda",
    "lambda_",
    type=options.Number(0, 1),
    default=0.5,
    show_default=True,
    help="Weight of throughput against latency.",
)
@click.option(
    "--empty-family",
    type=options.Choice(["half", "drop"]),
    default="half",
    show_default=True,
    help="A category without a valid model counts with speed-up 0.5, or not at all.",
)
@options.verbose
@options.written("--json", "json_path", text="Write the report with its new scores; `-` is stdout.")
def command(
    results: tuple[str, ...],
    f: float | None,
    lambda_: float,
    empty_family: Literal["half", "drop"],
    json_path: str | None,
    verbose: bool,
) -> None:
    """Recompute MacroEval from reports of `fk eval`. Several reports are scored together, as one: of other
    models, or of other workloads of one model on equal machines.

    The exit code is that of one run of them all: 1 if a candidate failed, 3 if a ratio is unstable or a model
    was not evaluated.
    """
    from fastkernels.report import json, publish
    from fastkernels.score.macroeval import rescore
    from fastkernels.score.merge import merge

    report = merge([json.load_eval(path) for path in results])
    scored = rescore(report, f=f, lambda_=lambda_, empty_family=empty_family)
    raise SystemExit(publish(scored, json_path, verbose=verbose, is_run=False))
