"""Tier 2: one model served as fast as it goes, measured as `vllm bench throughput` and `latency` measure.

result = throughput(load(engine), TokenRun(requests=1000, input_len=512, output_len=512))
result["output_tokens_per_second"]

Prompts are random ids of exact length, continuations greedy and of exact length: what differs between two
engines is the engine. Names in results are vLLM's.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.llm import LLM
from fastkernels.errors import FastKernelsError, UsageError
from fastkernels.loader.candidates import discover
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import TOKENS, ModelSource, find, without_weights
from fastkernels.measure.environment import environment
from fastkernels.progress import Progress, Show
from fastkernels.records.base import Size, printable
from fastkernels.runner.source_rules import imported_by

WARM_UP = (8, 16, 8)  # requests, tokens in and out: what is compiled and captured lazily
PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True)
class EngineOptions:
    """What is served, and how; flags of the command. None: the engine's own choice."""

    model: str
    candidates: str | None = None
    size: Size | None = None
    device: str = "auto"
    seed: int = 0
    load_format: str = "auto"  # dummy: random weights for the configuration of a folder or a Hub id
    tokenizer: str | None = None  # the model's own
    options: dict[str, Any] = field(default_factory=dict)  # of LLM, those that were given


@dataclass(frozen=True)
class TokenRun:
    """`requests` prompts of `input_len` tokens, each continued by `output_len`. detokenize: with the text of
    the continuations, where there is a tokenizer."""

    requests: int
    input_len: int
    output_len: int
    detokenize: bool = True


def load(engine: EngineOptions, run: TokenRun) -> tuple[LLM, float]:
    """The model, and the seconds until its first tokens were there. UsageError, before any token, where
    `run` does not fit."""
    begin = time.perf_counter()
    source = source_of(engine, "fk e2e")
    if media := media_of(source):
        raise UsageError(
            f"{source.name} takes {', '.join(media)} beside its prompts, which fk e2e has not: see fk eval"
        )
    llm = make(engine, source)
    _fits(llm, run)
    warm_up(llm, engine.seed)
    return llm, time.perf_counter() - begin


def source_of(engine: EngineOptions, asked_for: str) -> ModelSource:
    """What the model is made from; UsageError unless it answers with tokens."""
    source = find(_named(engine))
    source.require((TOKENS,), asked_for)
    return source


def media_of(source: ModelSource) -> list[str]:
    """What the model takes beside the ids of a prompt."""
    correctness = source.architecture.correctness
    return list(correctness.media) if correctness.kind == "tokens" else []


def make(engine: EngineOptions, source: ModelSource) -> LLM:
    """The model of `source_of`, with the candidates in place."""
    overlay = None
    if engine.candidates is not None:
        found = discover([engine.candidates])
        if len(found) != 1:
            names = ", ".join(each.name for each in found)
            raise UsageError(
                f"--candidates {engine.candidates}: {len(found)} sets ({names}); name one of them"
            )
        imported_by(found[0], {engine.model: source.architecture})
        overlay = Overlay.over_baseline(list(found[0].layers))
    return LLM(
        _named(engine),
        overlay=overlay,
        size=engine.size,
        device=engine.device,
        seed=engine.seed,
        tokenizer=None if engine.tokenizer is None else tokenizer_of(engine.tokenizer),
        **engine.options,
    )


def warm_up(llm: LLM, seed: int) -> None:
    """A few tokens, so that what is compiled and captured lazily is there."""
    requests, input_len, output_len = WARM_UP
    lengths = (input_len, output_len) if input_len + output_len <= llm.limits.max_len else (1, 1)
    _generate(llm, TokenRun(requests, *lengths), random.Random(seed))


def _named(engine: EngineOptions) -> Any:
    return without_weights(engine.model) if engine.load_format == "dummy" else engine.model


@contextlib.contextmanager
def blaming(candidates: str | None) -> Iterator[None]:
    """What fails in a model with candidates is told as their failure: they run in this very process."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if candidates is None or isinstance(error, FastKernelsError):
            raise
        what = printable(f"{type(error).__name__}: {error}".strip())
        advice = f"See where: fk kernels --candidates {candidates}"
        raise FastKernelsError(f"with --candidates {candidates} the model fails: {what}. {advice}") from error


def tokenizer_of(name: str) -> Any:
    """Of a folder or a Hub id. UsageError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        first = str(error).strip().partition("\n")[0].strip()
        if first.endswith(":"):  # a list begins, of all that transformers tried
            first = "no tokenizer that transformers can read."
        raise UsageError(
            f"--tokenizer {name}: {first} Give a folder with a tokenizer, or --disable-detokenize instead"
        ) from error


def throughput(llm: LLM, run: TokenRun, seed: int = 0, show: Show = lambda step: None) -> dict[str, Any]:
    """All requests at once, after as many others."""
    show(Progress(0, 2, "warm-up"))
    _generate(llm, run, random.Random(seed))
    show(Progress(1, 2, f"{run.requests} requests of {run.input_len} + {run.output_len} tokens"))
    seconds = _generate(llm, run, random.Random(seed + 1))
    total = run.requests * (run.input_len + run.output_len)
    return {
        "elapsed_time": seconds,
        "num_requests": run.requests,
        "total_num_tokens": total,
        "requests_per_second": run.requests / seconds,
        "tokens_per_second": total / seconds,
        "output_tokens_per_second": run.requests * run.output_len / seconds,
    }


def latency(
    llm: LLM, run: TokenRun, iterations: int, warm_ups: int, seed: int = 0, show: Show = lambda step: None
) -> dict[str, Any]:
    """One batch again and again; seconds from the prompts to the last token. Ctrl-C ends it with what was
    finished, `complete` False, once an iteration was."""
    rng, seconds = random.Random(seed + 1), []
    try:
        for turn in range(warm_ups + iterations):
            what = f"batch of {run.requests}, {'warm-up' if turn < warm_ups else 'iteration'}"
            show(Progress(turn, warm_ups + iterations, what))
            seconds.append(_generate(llm, run, rng))
    except KeyboardInterrupt:
        if len(seconds) <= warm_ups:
            raise
    seconds = seconds[warm_ups:]
    return {
        "complete": len(seconds) == iterations,
        "avg_latency": float(np.mean(seconds)),
        "latencies": seconds,
        "percentiles": {str(p): float(np.percentile(seconds, p)) for p in PERCENTILES},
    }


def record(kind: str, engine: EngineOptions, run: TokenRun, start_s: float, llm: LLM, result: dict) -> dict:
    """What `--json` writes: the question, the machine and the figures."""
    return {
        "kind": f"e2e {kind}",
        "environment": environment("cuda" if llm.device.type == "cuda" else "cpu").model_dump(),
        "engine": {**engine.__dict__, "dtype": str(llm.dtype).removeprefix("torch.")},
        "run": run.__dict__,
        "start_s": start_s,
        "stats": llm.stats(),
        **result,
    }


def _generate(llm: LLM, run: TokenRun, rng: random.Random) -> float:
    prompts = [[rng.randrange(llm.vocabulary) for _ in range(run.input_len)] for _ in range(run.requests)]
    greedy = SamplingParams(
        temperature=0.0, max_tokens=run.output_len, ignore_eos=True, detokenize=run.detokenize
    )
    begin = time.perf_counter()
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    seconds = time.perf_counter() - begin
    _exact([len(o.outputs[0].token_ids) for o in outputs], run)
    return seconds


def _exact(lengths: Sequence[int], run: TokenRun) -> None:
    assert list(lengths) == [run.output_len] * run.requests, f"asked for {run}, got {sorted(set(lengths))}"


def _fits(llm: LLM, run: TokenRun) -> None:
    wanted, most = run.input_len + run.output_len, llm.limits.max_len
    if wanted > most:
        raise UsageError(
            f"--input-len {run.input_len} and --output-len {run.output_len} need {wanted} positions; "
            f"the model is loaded with {most} (--max-model-len). Ask for less: "
            f"--input-len {most // 2} --output-len {most // 4}"
        )
