"""`fk capture`: golden values of a model's routers, and what their routing changes."""

from __future__ import annotations

from typing import Any

import click

from fastkernels.cli import options
from fastkernels.errors import UsageError

_POSITIVE = click.IntRange(min=1)
_OF_A_RUN = ("out", "workload", "prompts", "requests", "size", "dtype", "seed", "tokens", "hidden_tokens")


@click.command(
    epilog="Examples: fk capture --model mixtral --out golden · fk kernels --golden golden --target moe "
    "--self-test --json report.json · fk capture --golden golden --times report.json --plot routing.png"
)
@options.model()
@click.option("--out", metavar="DIR", help="Where the golden folder is written; must be new or empty.")
@click.option("--golden", metavar="DIR", help="Show a golden folder that is there, in place of a run.")
@click.option("--workload", metavar="W", help="Lengths and requests. Default: the architecture's first.")
@click.option("--prompts", metavar="FILE", help="A prompt in each line. Default: random ids.")
@click.option(
    "--requests", type=_POSITIVE, default=32, show_default=True, help="Most requests of the workload."
)
@options.size
@options.device
@options.dtype
@options.seed
@click.option(
    "--tokens",
    type=_POSITIVE,
    default=8192,
    show_default=True,
    help="Most tokens of prefill, and of decode, that are kept of every layer.",
)
@click.option(
    "--hidden-tokens",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    help="Of these, with hidden states: by far the most bytes.",
)
@click.option("--times", "report", metavar="REPORT", help="With --golden: times from fk kernels --golden.")
@options.written("--plot", text="Draw loads and times (extra: report).", metavar="PNG")
@options.quiet
@options.written("--json", "json_path", text="Write the comparison as JSON; `-` is stdout.")
def command(
    golden: str | None,
    report: str | None,
    plot: str | None,
    quiet: bool,
    json_path: str | None,
    **flags: Any,
) -> None:
    """Record what the routers of a model get and choose; show how that differs from drawn routing.

    `fk kernels --golden DIR` replays it.
    """
    if (golden is None) == (flags["model"] is None):
        raise UsageError("Say what to capture (--model M --out DIR), or which capture to show (--golden DIR)")
    if golden is not None:
        options.refuse(_OF_A_RUN, "--golden shows what was captured, and captures nothing")
    if golden is None and flags["out"] is None:
        raise UsageError("--model: say where the golden folder is written (--out DIR)")
    if golden is None and report is not None:
        raise UsageError(
            "--times compares what was replayed: capture first, then --golden DIR --times REPORT"
        )
    import sys

    from fastkernels.capture import plot as picture
    from fastkernels.capture.comparison import compare
    from fastkernels.capture.page import parts
    from fastkernels.cli.output import emit_json
    from fastkernels.measure.environment import require_device
    from fastkernels.report.layout import show
    from fastkernels.settings import resolve

    if plot is not None:
        picture.require()
    if golden is None:
        golden = _run(flags, quiet)
    found = compare(golden, require_device(resolve(device=flags["device"]).device_asked), report)
    show(parts(found), sys.stderr if json_path == "-" else sys.stdout)
    if json_path is not None:
        emit_json(found.facts(), json_path)
    if plot is not None:
        picture.save(found, plot)
        click.echo(f"drawn to {plot}", err=True)


def _run(flags: dict[str, Any], quiet: bool) -> str:
    """Capture; the golden folder."""
    from fastkernels.capture.run import CaptureRequest, run_capture
    from fastkernels.cli.progress import showing

    with showing(quiet) as show:
        run_capture(CaptureRequest.parse(**flags), show)
    click.echo(
        f"golden values written to {flags['out']}. Replay: fk kernels --golden {flags['out']}", err=True
    )
    return flags["out"]
