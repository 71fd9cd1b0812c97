"""`fk e2e`: tier 2, one model end to end, with the flags of `vllm bench`.

Those that say what holds here anyway are in vllm_flags.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from fastkernels.cli import INTERRUPTED, options, vllm_flags
from fastkernels.errors import MissingExtraError, UsageError
from fastkernels.layout import install_line

_POSITIVE = click.IntRange(min=1)


@click.group(
    epilog="Examples: fk e2e throughput --model llama --input-len 512 --output-len 512 · on a CPU: "
    "fk e2e latency --model llama --input-len 32 --output-len 16"
)
def command() -> None:
    """Serve one model as fast as it goes: tokens a second, or seconds of one batch."""


def engine_options(function: Callable[..., None], needs_model: bool = True) -> Callable[..., None]:
    """The flags that say what is served; those of LLM that were given arrive together in `options`."""
    for option in reversed(
        (
            options.model(required=needs_model),
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
            click.option("--tensor-parallel-size", "-tp", type=_POSITIVE, metavar="N", help="Ranks."),
            click.option("--enable-expert-parallel/--no-enable-expert-parallel", default=None),
            click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None),
            click.option(
                "--load-format",
                type=options.Choice(["auto", "dummy"]),
                default="auto",
                help="dummy: random weights, of a folder or Hub id the configuration alone is read.",
            ),
            click.option("--tokenizer", metavar="FOLDER|ID", help="Default: that of the model's folder."),
            options.seed,
        )
    ):
        function = option(function)
    return function


def _measured(function: Callable[..., None]) -> Callable[..., None]:
    """`engine_options`, and the flags of a run in this process."""
    for option in (
        vllm_flags.accepted,
        options.written("--json", "--output-json", "json_path", text="Write JSON; `-` is stdout."),
        options.quiet,
        click.option("--disable-detokenize", is_flag=True, help="No text is made of the tokens."),
    ):
        function = option(function)
    return engine_options(function)


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
@_measured
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
@_measured
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


def _rates(context: click.Context, parameter: click.Parameter, given: tuple[float, ...]) -> tuple[float, ...]:
    if any(not rate > 0 for rate in given):
        raise click.BadParameter("a rate is a number above 0, or inf")
    return given or (float("inf"),)


def _limits(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    limits = {}
    for one in given:
        name, _, most = one.partition(":")
        try:
            limits[name] = float(most)
        except ValueError:
            limits[name] = 0.0
        if name not in ("ttft", "tpot", "e2el") or not limits[name] > 0:
            raise click.BadParameter(f"{one!r}: give ttft:MS, tpot:MS or e2el:MS")
    return limits


@command.command(
    epilog="Example: fk e2e serve --model llama --request-rate 4 --request-rate inf --goodput ttft:200"
)
@_lengths(128, 128)
@click.option("--num-prompts", type=_POSITIVE, default=200, show_default=True)
@click.option(
    "--request-rate",
    "rates",
    type=float,
    multiple=True,
    callback=_rates,
    metavar="R",
    help="Requests a second; each R is a run. Default: inf, all at once.",
)
@click.option(
    "--burstiness",
    type=options.Number(0, min_open=True),
    default=1.0,
    show_default=True,
    help="1: Poisson arrivals; below: bursts; above: more even.",
)
@click.option("--max-concurrency", type=_POSITIVE, metavar="N", help="Most requests at once.")
@click.option(
    "--goodput", multiple=True, callback=_limits, metavar="NAME:MS", help="A limit of ttft, tpot or e2el."
)
@click.option(
    "--metric-percentile",
    "percentiles",
    type=options.Number(0, 100),
    multiple=True,
    default=(99.0,),
    show_default=True,
)
@click.option(
    "--base-url", metavar="URL", help="A server that runs (http://127.0.0.1:8000/v1); else one is started."
)
@click.option("--api-key", envvar="FK_API_KEY", metavar="KEY", help="Of that server.")
@options.quiet
@options.written("--json", "--output-json", "json_path", text="Write JSON; `-` is stdout.")
@partial(engine_options, needs_model=False)
def serve(
    num_prompts: int,
    input_len: int,
    output_len: int,
    rates: tuple[float, ...],
    burstiness: float,
    max_concurrency: int | None,
    goodput: dict[str, float],
    percentiles: tuple[float, ...],
    base_url: str | None,
    api_key: str | None,
    quiet: bool,
    json_path: str | None,
    **flags: Any,
) -> None:
    """Times of tokens over HTTP, at given rates: TTFT, TPOT, ITL, goodput.

    Without --base-url `fk serve` is started for it, with the flags of the engine.
    """
    from fastkernels.cli.output import emit_json
    from fastkernels.cli.progress import showing
    from fastkernels.engine.core.checks import device_of
    from fastkernels.measure.environment import environment

    try:
        from fastkernels.serve import bench
        from fastkernels.serve.server import ServeOptions, running
    except ImportError as error:
        raise MissingExtraError(str(error.name), install_line("serve"), "fk e2e serve") from None
    load = bench.Load(
        num_prompts,
        input_len,
        output_len,
        rates,
        burstiness,
        max_concurrency,
        percentiles,
        goodput,
        flags["seed"],
    )
    record: dict[str, Any] = {"kind": "e2e serve", "load": bench.described(load), "base_url": base_url}
    if base_url is not None:
        options.refuse(set(flags) - {"seed"}, "the server of --base-url runs already")
    elif flags["model"] is None:
        raise UsageError("say which server: --model starts one, --base-url names one that runs")
    with showing(quiet) as show, contextlib.ExitStack() as stack:
        if base_url is None:
            engine = engine_of(flags)
            record["engine"] = engine.__dict__
            show(f"loading {engine.model}")
            kind = "cuda" if device_of(engine.device).type == "cuda" else "cpu"
            record["environment"] = environment(kind).model_dump()
            base_url = stack.enter_context(running(ServeOptions(engine, port=0))) + "/v1"
        record["results"] = bench.measure(base_url, load, show, api_key)
    for result in record["results"]:
        _say(json_path, *bench.told(result))
    if json_path:
        emit_json(record, json_path)


def _measure(kind: str, run: Any, flags: dict[str, Any], measure: Callable[..., dict]) -> dict[str, Any]:
    """Load, measure, and write the record where it was asked for."""
    from fastkernels.cli.output import emit_json
    from fastkernels.cli.progress import showing
    from fastkernels.runner.models import e2e

    quiet = flags.pop("quiet")
    engine = engine_of({name: value for name, value in flags.items() if name != "json_path"})
    with showing(quiet) as show, e2e.blaming(engine.candidates):
        show(f"loading {engine.model}")
        llm, start_s = e2e.load(engine, run)
        result = e2e.record(kind, engine, run, start_s, llm, measure(llm, show))
    if flags["json_path"]:
        emit_json(result, flags["json_path"])
    return result


def engine_of(flags: dict[str, Any]) -> Any:
    """The EngineOptions that flags of `engine_options` say."""
    from fastkernels.runner.models.e2e import EngineOptions
    from fastkernels.settings import resolve

    settings = resolve(device=flags.get("device"), size=flags.get("size"))
    named = ("model", "candidates", "seed", "load_format", "tokenizer")
    rest = {k: v for k, v in flags.items() if v is not None and k not in (*named, "device", "size")}
    return EngineOptions(
        **{k: flags[k] for k in named}, device=settings.device, size=settings.size_asked, options=rest
    )


def _say(json_path: str | None, *lines: str) -> None:
    for line in lines:
        click.echo(line, err=json_path == "-")
