"""`fk gate`: a head against its base, for CI."""

from __future__ import annotations

from typing import Any

import click

from fastkernels.cli import options


@click.command(epilog="Example: fk gate my/candidate --base origin/main --junit gate.xml --markdown gate.md")
@click.argument("head", metavar="HEAD")
@click.option(
    "--base",
    metavar="REF|REPORT|DIR",
    help="A candidate's folder, a git revision, or a report of fk kernels. Default: the baseline.",
)
@click.option(
    "--min-speedup",
    type=options.Number(min=0, min_open=True),
    metavar="X",
    help="Least geometric mean of the head's speed-ups over the base.",
)
@click.option(
    "--max-regression",
    "max_regression_pct",
    type=options.Number(min=0),
    metavar="%",
    help="A case may be this much slower than the base's, or as the noise is: at least 1 %, of calls that "
    "cannot be captured (contract eager) 8 %. Default: 3.",
)
@click.option(
    "--min-regression-us",
    type=options.Number(min=0),
    metavar="US",
    help="And a case that is less than this slower is never SLOW. Default: 0.3.",
)
@options.targets("every task that a candidate replaces; all for revisions.")
@options.level
@options.architecture
@options.case
@options.size
@options.device
@options.budget
@options.timeout
@click.option(
    "--compile-check/--no-compile-check",
    default=False,
    show_default=True,
    help="Whether torch.compile must take the head whole where it takes the base so.",
)
@options.verbose
@options.report_json
@options.written("--junit", "junit_path", text="Write JUnit XML; `-` is stdout.")
@options.written("--markdown", "markdown_path", text="Write a comment for a pull request; `-` is stdout.")
def command(
    json_path: str | None,
    junit_path: str | None,
    markdown_path: str | None,
    verbose: bool,
    **arguments: Any,
) -> None:
    """Whether HEAD is right, and no slower than its base: both are measured here and now, alternating.

    HEAD is a candidate's folder, or a git revision whose own kernels are compared. Exit codes: 0 passed,
    1 SLOW, MISSING, BROKEN (wrong, or no more part of a CUDA graph) or below --min-speedup, 2 usage,
    3 AMBIGUOUS or this machine cannot do it.
    """
    from fastkernels.cli.progress import counting, saying
    from fastkernels.gate.gate import GateRequest, run_gate
    from fastkernels.report import files, gate_markdown, junit, publish

    request = GateRequest.parse(**arguments)
    with counting() as count:
        run = run_gate(request, count, saying)
    asked = (("--junit", junit_path, junit.text), ("--markdown", markdown_path, gate_markdown.text))
    further = [
        (path, lambda flag=flag, path=path, text=text: files.write(text(run.report), path, flag))
        for flag, path, text in asked
        if path
    ]
    raise SystemExit(publish(run.report, json_path, run.sources, further, verbose))
