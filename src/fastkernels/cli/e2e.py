"""`fk e2e`: tier 2, one model end to end, with the flags of `vllm bench`.

Those that say what holds here anyway are in vllm_flags.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fastkernels.cli import INTERRUPTED, options, vllm_flags

_POSITIVE = click.IntRange(min=1)


@click.group(epilog="Example: fk e2e throughput --model llama --input-len 512 --output-len 512")
def command() -> None:
    """Serve one model as fast as it goes: tokens a second, or seconds of one batch."""


def engine_options(function: Callable[..., None]) -> Callable[..., None]:
    """The flags that say what is served; those of LLM that were given arrive together in `options`."""
    for option in reversed(
        (
            options.model(required=True),
            click.option(
                "--candidates", metavar="DIR", help="Candidates in place of the baseline's modules."
            ),
            options.size,
            options.device,
            options.dtype,
            click.option("--max-model-len", type=click.IntRange(min=2), metavar="N"),
            click.option("--max-num-seqs", type=_POSITIVE, metavar="N"),
            click.option("--max-num-batched-tokens", type=_POSITIVE, metavar="N"),
            click.option("--gpu-memory-utilization", type=options.Number(0, 1, min_open=True), metavar="X"),
            click.option("--block-size", type=_POSITIVE, metavar="N"),
            click.option("--enforce-eager", is_flag=True, default=None, help="Without CUDA graphs."),
            click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None),
            click.option(
                "--load-format",
                type=click.Choice(["auto", "dummy"]),
                default="auto",
                help="dummy: random weights, of a folder or Hub id the configuration alone is read.",
            ),
            click.option("--tokenizer", metavar="FOLDER|ID", help="Default: that of the model's folder."),
            click.option("--disable-detokenize", is_flag=True, help="No text is made of the tokens."),
            options.seed,
            options.quiet,
            options.written("--json", "--output-json", "json_path", text="Write JSON; `-` is stdout."),
            vllm_flags.accepted,
        )
    ):
        function = option(function)
    return function


def _lengths(input_len: int, output_len: int) -> Callable[..., Any]:
    """Tokens of a prompt and of its continuation, also by the names that they have for a random data set."""

    def lengths(function: Callable[..., Any]) -> Callable[..., Any]:
        for side, default in (("output", output_len), ("input", input_len)):
            names = (f"--{side}-len", f"--random-{side}-len", f"{side}_len")
            function = click.option(*names, type=_POSITIVE, default=default, show_default=True)(function)
        return function

    return lengths


@command.command(epilog="Example: fk e2e throughput --model llama --input-len 512 --output-len 512")
@_lengths(512, 128)
@click.option("--num-prompts", type=_POSITIVE, default=1000, show_default=True)
@engine_options
def throughput(num_prompts: int, input_len: int, output_len: int, **flags: Any) -> None:
    """Tokens a second of many requests that come at once."""
    from fastkernels.runner.models import e2e

    run = e2e.TokenRun(num_prompts, input_len, output_len, not flags.pop("disable_detokenize"))
    result = _measure(
        "throughput", run, flags, lambda llm, show: e2e.throughput(llm, run, flags["seed"], show)
    )
    _say(
        flags["json_path"],
        f"Throughput: {result['requests_per_second']:.2f} requests/s, "
        f"{result['tokens_per_second']:.2f} total tokens/s, "
        f"{result['output_tokens_per_second']:.2f} output tokens/s",
        f"{result['elapsed_time']:.3f} s; from the start to the first tokens {result['start_s']:.1f} s",
    )


@command.command(epilog="Example: fk e2e latency --model llama --input-len 128 --batch-size 1")
@_lengths(32, 128)
@click.option("--batch-size", type=_POSITIVE, default=8, show_default=True)
@click.option("--num-iters", type=_POSITIVE, default=30, show_default=True)
@click.option("--num-iters-warmup", type=click.IntRange(min=0), default=10, show_default=True)
@engine_options
def latency(
    batch_size: int, input_len: int, output_len: int, num_iters: int, num_iters_warmup: int, **flags: Any
) -> None:
    """Seconds of one batch, from its prompts to its last token.

    Interrupted, the iterations that were finished are reported; the exit code is 130.
    """
    from fastkernels.runner.models import e2e

    run = e2e.TokenRun(batch_size, input_len, output_len, not flags.pop("disable_detokenize"))
    result = _measure(
        "latency",
        run,
        flags,
        lambda llm, show: e2e.latency(llm, run, num_iters, num_iters_warmup, flags["seed"], show),
    )
    if not result["complete"]:
        finished = len(result["latencies"])
        _say(flags["json_path"], f"interrupted: {finished} of {num_iters} iterations were finished")
    percentiles = (f"{p}%: {seconds:.4f} s" for p, seconds in result["percentiles"].items())
    _say(
        flags["json_path"],
        f"Avg latency: {result['avg_latency']:.4f} seconds ({' · '.join(percentiles)})",
        f"from the start to the first tokens {result['start_s']:.1f} s",
    )
    if not result["complete"]:
        raise SystemExit(INTERRUPTED)


def _measure(kind: str, run: Any, flags: dict[str, Any], measure: Callable[..., dict]) -> dict[str, Any]:
    """Load, measure, and write the record where it was asked for."""
    from fastkernels.cli.output import emit_json
    from fastkernels.cli.progress import showing
    from fastkernels.runner.models import e2e
    from fastkernels.settings import resolve

    quiet = flags.pop("quiet")
    settings = resolve(device=flags.pop("device"), size=flags.pop("size"))
    named = ("model", "candidates", "seed", "load_format", "tokenizer")
    rest = {k: v for k, v in flags.items() if v is not None and k not in (*named, "json_path")}
    engine = e2e.EngineOptions(
        **{k: flags[k] for k in named}, device=settings.device, size=settings.size_asked, options=rest
    )
    with showing(quiet) as show, e2e.blaming(engine.candidates):
        show(f"loading {engine.model}")
        llm, start_s = e2e.load(engine, run)
        result = e2e.record(kind, engine, run, start_s, llm, measure(llm, show))
    if flags["json_path"]:
        emit_json(result, flags["json_path"])
    return result


def _say(json_path: str | None, *lines: str) -> None:
    for line in lines:
        click.echo(line, err=json_path == "-")
