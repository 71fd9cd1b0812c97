"""Counters and histograms of the server, in Prometheus' text format (version 0.0.4).

TTFT and the time between tokens are those of answers that are read token by token: of a whole answer the
server sees the end alone.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "fastkernels"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Histogram:
    def __init__(self, name: str, text: str, bounds: Sequence[float] = _SECONDS) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, "histogram", self.text)
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts):
            total += count
            yield f'{_PREFIX}_{self.name}_bucket{{le="{bound}"}} {total}'
        yield f"{_PREFIX}_{self.name}_sum {self.sum}"
        yield f"{_PREFIX}_{self.name}_count {total}"


class Metrics:
    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()  # by how they ended
        self.prompt_tokens = self.generation_tokens = 0
        self.first_token = Histogram("time_to_first_token_seconds", "From a request to its first token.")
        self.between = Histogram("inter_token_latency_seconds", "Between two tokens of an answer.")
        self.latency = Histogram("request_latency_seconds", "From a request to the end of its answer.")

    def grown(self, is_first: bool, seconds: float) -> None:
        (self.first_token if is_first else self.between).observe(seconds)

    def ended(self, how: str, num_prompt: int, num_tokens: int, seconds: float | None = None) -> None:
        """An answer ended: stop, length, abort, refused or failed."""
        self.answers[how] += 1
        self.generation_tokens += num_tokens
        self.prompt_tokens += 0 if how == "refused" else num_prompt
        if seconds is not None:
            self.latency.observe(seconds)

    def text(self, num_open: int, stats: Mapping[str, Any]) -> str:
        """num_open: answers that have not ended. stats: of the engine."""
        lines = [*_head("answers_total", "counter", "Answers that ended, by how.")]
        lines += [f'{_PREFIX}_answers_total{{how="{how}"}} {count}' for how, count in self.answers.items()]
        for name, kind, text, value in (
            ("prompt_tokens_total", "counter", "Tokens of prompts of ended answers.", self.prompt_tokens),
            ("generation_tokens_total", "counter", "Tokens of ended answers.", self.generation_tokens),
            ("answers_open", "gauge", "Answers that wait or run.", num_open),
            ("cache_blocks", "gauge", "Cache blocks, one of each group excepted.", _blocks(stats)),
            ("cache_blocks_free", "gauge", "Cache blocks free.", sum(stats["free_cache_blocks"])),
            ("preemptions_total", "counter", "Requests that lost their row.", stats["preemptions"]),
            ("prefix_tokens_asked_total", "counter", "Looked up.", stats["prefix_tokens_asked"]),
            ("prefix_tokens_found_total", "counter", "Found in the cache.", stats["prefix_tokens_found"]),
        ):
            lines += [*_head(name, kind, text), f"{_PREFIX}_{name} {value}"]
        for histogram in (self.first_token, self.between, self.latency):
            lines += histogram.lines()
        return "\n".join(lines) + "\n"


def _blocks(stats: Mapping[str, Any]) -> int:
    """Those that requests can have: the first of a group is no request's."""
    return sum(stats["cache_blocks"]) - len(stats["cache_blocks"])


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}_{name} {text}"
    yield f"# TYPE {_PREFIX}_{name} {kind}"
