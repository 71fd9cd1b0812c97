"""Tokens that a model said while the clock ran, against the baseline forced along them.

    gap_i    log p(best) - log p(said_i), by the baseline, behind the prompt and the tokens said before i
    spread   median of log p(best) - log p(20th best) over positions of the baseline's own texts
    doubt    max(spread / 3, twice the largest gap at which noise runs of the baseline differ)
    d        1 - share of positions whose token is the best; behind the first gap beyond `doubt` none is

Teacher forcing alone believes a text that begins with anything: every token but the first follows from those
before it, so one that follows itself could be said for ever. Who rounds otherwise leaves the baseline's text
where two tokens are nearly as good.

    repeated   share of a text's end that repeats what stands before it twice

A greedy text may come to such a token by itself. Then whoever repeats the last tokens is right without a
model, and the text is no evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DOUBT_OF_SPREAD = 1 / 3
DOUBT_OF_NOISE = 2.0
LONGEST_PERIOD = 16
MOST_REPEATED = 0.1  # of texts that are evidence: what a filler can win


@dataclass(frozen=True)
class Said:
    """One text: tokens, and of each position the baseline's choice and its largest log-probabilities."""

    tokens: Sequence[int]
    argmax: Sequence[int]
    top: Sequence[Mapping[str, float]]

    def gaps(self) -> list[float]:
        """Of each position; 0 where the token is the best. One that is not listed is at least as far off as
        the last that is."""
        return [
            0.0 if token == best else _gap(token, top)
            for token, best, top in zip(self.tokens, self.argmax, self.top, strict=True)
        ]


def discrepancy(said: Said, doubt: float) -> float:
    """d of one text. ValueError without tokens."""
    if not said.tokens:
        raise ValueError("A text without tokens has no discrepancy")
    right = 0
    for gap in said.gaps():
        if gap > doubt:
            break
        right += gap == 0
    return 1 - right / len(said.tokens)


def doubt(tops: Iterable[Mapping[str, float]], largest_noise_gap: float) -> float:
    """How much less likely than the best a token may be that somebody said who only rounds otherwise. `tops`:
    the largest log-probabilities at each position of texts that no candidate chose."""
    spreads = [max(top.values()) - min(top.values()) for top in tops if top]
    spread = float(np.median(spreads)) if spreads else 0.0
    return max(DOUBT_OF_SPREAD * spread, DOUBT_OF_NOISE * largest_noise_gap)


def repeated(tokens: Sequence[int]) -> float:
    """0 .. 1; with periods of up to 16 tokens, of which two must have been seen."""
    last = len(tokens) - 1

    def known(period: int) -> int:
        run = 0
        while last - run - period >= 0 and tokens[last - run] == tokens[last - run - period]:
            run += 1
        return max(0, run - period)

    return max(map(known, range(1, LONGEST_PERIOD + 1))) / len(tokens)


def _gap(token: int, top: Mapping[str, float]) -> float:
    best, least = max(top.values()), min(top.values())
    return best - top.get(str(token), least)
