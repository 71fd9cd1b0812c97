"""`fk e2e serve`: requests that come by a random clock, and what their readers see.

    TTFT    from sending a request to its first token
    ITL     between two pieces of a stream
    TPOT    (end - first token) / (tokens - 1) of a request
    E2EL    from sending a request to its end
    goodput requests a second that keep every limit that was given

Arrivals, flags and the names of results are those of `vllm bench serve`: gaps between requests are drawn from
a gamma distribution of shape `burstiness` (1: Poisson arrivals; below: bursts; above: more even), scaled so
that the last of N requests is sent at N / rate seconds. A rate of infinity sends all at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from fastkernels.errors import FastKernelsError, UsageError

TIMES = ("ttft", "tpot", "itl", "e2el")
_PATIENCE = httpx.Timeout(None, connect=60.0)


@dataclass(frozen=True)
class Load:
    """rates: requests a second, one run for each. concurrency: most requests at once. goodput: limits in
    milliseconds by name."""

    requests: int
    input_len: int
    output_len: int
    rates: Sequence[float] = (float("inf"),)
    burstiness: float = 1.0
    concurrency: int | None = None
    percentiles: Sequence[float] = (99.0,)
    goodput: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0


@dataclass
class Seen:
    """What one reader saw. times: of the pieces, in seconds of the clock."""

    sent: float
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    problem: str | None = None

    @property
    def ttft(self) -> float:
        return self.times[0] - self.sent

    @property
    def e2el(self) -> float:
        return self.times[-1] - self.sent

    @property
    def tpot(self) -> float:
        return (self.e2el - self.ttft) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def keeps(self, limits: Mapping[str, float]) -> bool:
        return all(1000 * getattr(self, name) <= most for name, most in limits.items())


def measure(url: str, load: Load, tell: Any = lambda text: None, api_key: str | None = None) -> list[dict]:
    """One result for each rate, of the server at `url` (with /v1). FastKernelsError without any answer."""
    return asyncio.run(_measure(url.rstrip("/"), load, tell, api_key))


def described(load: Load) -> dict[str, Any]:
    """As JSON: which has no infinity."""
    return {**load.__dict__, "rates": [_rate(rate) for rate in load.rates]}


def told(result: Mapping[str, Any]) -> list[str]:
    """A result in lines."""
    rate, limits = result["request_rate"], result["request_goodput"]
    kept = "" if limits is None else f", goodput {limits:.2f} requests/s"
    lines = [
        f"rate {rate}: {result['completed']} requests in {result['duration']:.2f} s, "
        f"{result['request_throughput']:.2f} requests/s, "
        f"{result['output_throughput']:.1f} output tokens/s{kept}"
    ]
    for name in TIMES:
        figures = [(key, ms) for key, ms in result.items() if key.endswith(f"_{name}_ms")]
        if figures:
            each = " · ".join(f"{key.partition('_')[0]} {ms:.2f}" for key, ms in figures)
            lines.append(f"  {name.upper()} ms: {each}")
    lines += [f"  {result['failed']} failed: {problem}" for problem in result["problems"]]
    return lines


def gaps_s(count: int, rate: float, burstiness: float, rng: np.random.Generator) -> np.ndarray:
    """Seconds ahead of each of `count` requests."""
    if np.isinf(rate):
        return np.zeros(count)
    drawn = rng.gamma(burstiness, 1 / (rate * burstiness), count)
    return drawn * (count / rate / drawn.sum())


async def _measure(url: str, load: Load, tell: Any, api_key: str | None) -> list[dict]:
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=_PATIENCE, limits=limits, trust_env=False
    ) as client:
        card = await _card(client, url)
        wanted = load.input_len + load.output_len
        if wanted > card["max_model_len"]:
            raise UsageError(f"{wanted} positions are needed; the server has {card['max_model_len']}")
        rng = np.random.default_rng(load.seed)
        tell("warm-up")
        first = await _asked(client, card["id"], _ids(rng, load, card), load.output_len)
        if first.problem is not None:
            raise FastKernelsError(f"{url}: {first.problem}")
        results = []
        for rate in load.rates:
            tell(f"{load.requests} requests at {rate:g} a second")
            begin = time.perf_counter()
            seen = await _run(client, card, load, rate, rng)
            results.append(_result(load, rate, seen, time.perf_counter() - begin))
        return results


async def _card(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    try:
        answer = await client.get("/models")
        answer.raise_for_status()
        card = answer.json()["data"][0]
        return {name: card[name] for name in ("id", "max_model_len", "vocab_size")}
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(
            f"{url}/models does not say what is served ({what}): give the address that fk serve prints"
        ) from None


async def _run(
    client: httpx.AsyncClient, card: dict[str, Any], load: Load, rate: float, rng: np.random.Generator
) -> list[Seen]:
    room = asyncio.Semaphore(load.concurrency or load.requests)
    prompts = [_ids(rng, load, card) for _ in range(load.requests)]

    async def ask(ids: list[int]) -> Seen:
        async with room:
            return await _asked(client, card["id"], ids, load.output_len)

    tasks, due = [], time.perf_counter()
    for ids, gap in zip(prompts, gaps_s(load.requests, rate, load.burstiness, rng)):
        due += gap
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(ask(ids)))
    return await asyncio.gather(*tasks)


def _ids(rng: np.random.Generator, load: Load, card: dict[str, Any]) -> list[int]:
    return rng.integers(card["vocab_size"], size=load.input_len).tolist()


async def _asked(client: httpx.AsyncClient, model: str, ids: list[int], output_len: int) -> Seen:
    body = {
        "model": model,
        "prompt": ids,
        "max_tokens": output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    seen = Seen(time.perf_counter())
    try:
        async with client.stream("POST", "/completions", json=body) as answer:
            if answer.status_code != 200:
                seen.problem = f"status {answer.status_code}: {(await answer.aread())[:200].decode()}"
                return seen
            async for line in answer.aiter_lines():
                _hear(seen, line)
    except httpx.HTTPError as error:
        seen.problem = f"{type(error).__name__}: {error}".rstrip(": ")
    if seen.problem is None and seen.tokens != output_len:
        seen.problem = f"{seen.tokens} tokens of {output_len} came"
    return seen


def _hear(seen: Seen, line: str) -> None:
    said = line.removeprefix("data: ")
    if said == line or said == "[DONE]":
        return
    event = json.loads(said)
    if "error" in event:
        seen.problem = event["error"]["message"]
    elif event["choices"]:
        seen.times.append(time.perf_counter())
    if event.get("usage"):
        seen.tokens = event["usage"]["completion_tokens"]


def _result(load: Load, rate: float, seen: Sequence[Seen], seconds: float) -> dict[str, Any]:
    """FastKernelsError where no request was answered."""
    done = [one for one in seen if one.problem is None]
    problems = sorted({str(one.problem) for one in seen if one.problem is not None})
    if not done:
        raise FastKernelsError(f"no request of {len(seen)} was answered: {problems[0]}")
    tokens_out, tokens_in = sum(one.tokens for one in done), len(done) * load.input_len
    result: dict[str, Any] = {
        "request_rate": _rate(rate),
        "burstiness": load.burstiness,
        "max_concurrency": load.concurrency,
        "duration": seconds,
        "completed": len(done),
        "failed": len(seen) - len(done),
        "problems": problems,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(done) / seconds,
        "output_throughput": tokens_out / seconds,
        "total_token_throughput": (tokens_in + tokens_out) / seconds,
        "request_goodput": sum(one.keeps(load.goodput) for one in done) / seconds if load.goodput else None,
    }
    all_times = (
        [one.ttft for one in done],
        [one.tpot for one in done if one.tokens > 1],
        [gap for one in done for gap in np.diff(one.times).tolist()],
        [one.e2el for one in done],
    )
    for name, found in zip(TIMES, all_times):
        found_ms = 1000 * np.array(found)
        if not len(found_ms):  # of one token, or one piece, nothing is between
            continue
        result[f"mean_{name}_ms"], result[f"median_{name}_ms"] = found_ms.mean(), np.median(found_ms)
        result[f"std_{name}_ms"] = found_ms.std()
        for p in load.percentiles:
            result[f"p{p:g}_{name}_ms"] = np.percentile(found_ms, p)
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in result.items()}


def _rate(rate: float) -> float | str:
    return "inf" if np.isinf(rate) else rate
