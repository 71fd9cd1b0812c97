"""Judging drawn token ids: the right one where the choice is determined, else the right distribution.

    B rows · V vocabulary

temperature 0     the id's logit equals the row's maximum (a tie may fall either way)
otherwise         p = softmax(logits / temperature) cut to top_k and top_p and renormalised; p[id] must not be
                  zero, and over all draws of a trial the probability integral transform is uniform:

    u = sum of p over the tokens ordered before id  +  v p[id],    v uniform on (0, 1), the judge's secret

Where tokens tie with the last one that a cut keeps, the contract does not say which of them stay: all may be
drawn, and the row says nothing about the distribution.

For a right sampler every u is uniform whatever the logits, so draws from different rows add up to one
chi-square test. Two orders are tested: by falling probability (a sampler that is too sharp, too flat or
greedy) and by id (one that prefers a part of the vocabulary). All in float64; the draws themselves never
decide by one sample.

Numbers made of the logits look as even as drawn ones, as long as the logits are others each time. So some
calls change the seeds alone, and some the positions: whoever does not look at them draws the same again and
again. They go on by one from call to call, as a text does, and from one u of a row to the next

    u' - u  modulo 1                  is uniform where draws do not depend on one another

A number that creeps from position to position is even over all texts, and known from the token before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.judge.compare import Comparison
from fastkernels.judge.verdict import Verdict
from fastkernels.records import TensorSpec

_CHANCE = ("seeds", "positions")  # what a draw must depend on besides
_LEAST_VALUES = 1024  # of seeds or positions: in a case that holds them fixed, equal draws are right
_LEAST_CALLS = 16
_SHARE_THAT_DRAWS = 0.5  # of rows, at least: the others have temperature 0, or ties
BINS = 16
MIN_PER_BIN = 5  # the chi-square approximation needs this many expected draws in each bin
ENOUGH = 512  # draws of a trial: by then one id for all rows, or always the likeliest, is seen
SIGNIFICANCE = 1e-7  # a test condemns a right sampler once in ten million trials
# Float32 kernels sum V probabilities before they cut at top_p: mass this close to it may fall on either side.
TOP_P_SLACK = 1e-4


def calls_that_change(specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Which inputs of a sampler are to change alone, each in how many calls: enough for `verdict`, and for
    draws that repeat to be seen."""
    steps = BINS * MIN_PER_BIN / _SHARE_THAT_DRAWS
    return {
        name: max(_LEAST_CALLS, 1 + math.ceil(steps / max(1, math.prod(spec.shape))))
        for name, spec in specs.items()
        if name.startswith("arg.") and _plain(name) in _CHANCE and spec.high - spec.low >= _LEAST_VALUES
    }


def _plain(name: str) -> str:
    """`logits` for `arg.logits_BV`: a shape suffix is no part of a name."""
    stem = name.removeprefix("arg.")
    head, _, tail = stem.rpartition("_")
    return head if head and tail.isupper() else stem


class Allowed(NamedTuple):
    """What may be drawn. is_untied_B: no token that a cut leaves out ties with one that it keeps."""

    probability_BV: Tensor  # renormalised, float64
    may_BV: Tensor  # ties and slack included
    is_untied_B: Tensor


class Question:
    """What a sampler is asked: logits_BV and, for each row, temperature, top_k and top_p. Several answer it;
    what they may is worked out once, which takes longer than the rest of judging them."""

    def __init__(
        self,
        logits_BV: Tensor,
        temperature_B: Tensor,
        top_k_B: Tensor | None = None,
        top_p_B: Tensor | None = None,
    ) -> None:
        self.logits_BV, self._temperature_B = logits_BV, temperature_B
        self._top_k_B, self._top_p_B = top_k_B, top_p_B
        self.drawn_B = temperature_B > 0  # the others are determined

    @classmethod
    def of(cls, inputs: Mapping[str, Tensor]) -> Question:
        """From a trial's inputs by name."""
        given = {_plain(name): value for name, value in inputs.items() if name.startswith("arg.")}
        return cls(given["logits"], given["temperature"], given.get("top_k"), given.get("top_p"))

    @cached_property
    def allowed(self) -> Allowed | None:
        """Of the rows that draw; None where none does."""
        if not bool(self.drawn_B.any()):
            return None
        drawn_B = self.drawn_B
        return allowed(
            self.logits_BV[drawn_B],
            self._temperature_B[drawn_B],
            _pick(self._top_k_B, drawn_B),
            _pick(self._top_p_B, drawn_B),
        )


class SamplerJudge:
    """Collects the draws of one trial; `check` judges each call, `verdict` the distribution of all of
    them. `in_steps`: calls differ by a step of the seeds or of the positions alone."""

    def __init__(self, seed: int, in_steps: bool = False) -> None:
        self._in_steps = in_steps
        self._generator = torch.Generator(device="cpu").manual_seed(seed)
        self._by_rank: list[Tensor] = []
        self._by_id: list[Tensor] = []

    @property
    def draws(self) -> int:
        return sum(len(u) for u in self._by_rank)

    @property
    def enough(self) -> bool:
        """Whether a trial may stop drawing; with fewer draws a wrong distribution can pass."""
        return self.draws >= ENOUGH

    def check(self, ids_B: Tensor, question: Question) -> Verdict | None:
        """Judge one call: determined rows exactly, drawn rows by membership; remembers the drawn rows."""
        logits_BV, drawn_B = question.logits_BV, question.drawn_B
        vocabulary = logits_BV.shape[1]
        ids_B = ids_B.to(logits_BV.device, torch.int64).reshape(-1)
        outside = int(((ids_B < 0) | (ids_B >= vocabulary)).sum())
        if outside:
            return Verdict.wrong(
                "value", f"{outside} of {len(ids_B)} ids lie outside the vocabulary of {vocabulary}"
            )
        if verdict := _greedy(ids_B[~drawn_B], logits_BV[~drawn_B]):
            return verdict
        if (may := question.allowed) is None:
            return None
        column_B1 = ids_B[drawn_B].unsqueeze(1)
        forbidden = ~(may.may_BV.gather(1, column_B1).squeeze(1))
        if bool(forbidden.any()):
            return Verdict.wrong(
                "value",
                f"{int(forbidden.sum())} of {len(forbidden)} drawn ids lie outside top_k or top_p, or have "
                "probability 0",
            )
        self._remember(may.probability_BV[may.is_untied_B], column_B1[may.is_untied_B])
        return None

    def verdict(self) -> Comparison:
        """The distribution of everything drawn so far. Too few draws for a test pass on membership alone."""
        if self.draws < BINS * MIN_PER_BIN:
            return Comparison.of(Verdict.passed())
        for order, parts in (("probability", self._by_rank), ("vocabulary index", self._by_id)):
            chance = uniformity(torch.cat(parts))
            if chance < SIGNIFICANCE:
                what = f"{self.draws} draws ordered by {order} do not follow the distribution of the logits"
                return _improbable(what, chance)
            if self._in_steps and (chance := uniformity(_steps(parts))) < SIGNIFICANCE:
                what = f"draws ordered by {order} depend on the draws of the call before"
                return _improbable(what, chance)
        return Comparison.of(Verdict.passed())

    def _remember(self, probability_BV: Tensor, column_B1: Tensor) -> None:
        split_B = torch.rand(len(column_B1), generator=self._generator, dtype=torch.float64)
        split_B = split_B.to(probability_BV.device)
        own_B = probability_BV.gather(1, column_B1).squeeze(1)
        ids_V = torch.arange(probability_BV.shape[1], device=probability_BV.device)
        before_id = torch.where(ids_V < column_B1, probability_BV, 0).sum(1)
        likelier = probability_BV > own_B.unsqueeze(1)
        tied_before = (probability_BV == own_B.unsqueeze(1)) & (ids_V < column_B1)
        before_rank = torch.where(likelier | tied_before, probability_BV, 0).sum(1)
        self._by_id.append((before_id + split_B * own_B).cpu())
        self._by_rank.append((before_rank + split_B * own_B).cpu())


def allowed(
    logits_BV: Tensor, temperature_B: Tensor, top_k_B: Tensor | None, top_p_B: Tensor | None
) -> Allowed:
    """The distribution of each row, [B, V].

    top_k 0 and top_p 1 switch a cut off. Tokens that tie with the k-th stay. top_p keeps the smallest set of
    likeliest tokens whose mass reaches p, counted after top_k.
    """
    scaled_BV = logits_BV.to(torch.float64) / temperature_B.to(torch.float64).unsqueeze(1)
    is_untied_B = torch.ones(len(scaled_BV), dtype=torch.bool, device=scaled_BV.device)
    if top_k_B is not None:
        k_B = (
            torch.where(top_k_B > 0, top_k_B, logits_BV.shape[1])
            .clamp(max=logits_BV.shape[1])
            .to(torch.int64)
        )
        sorted_BV = scaled_BV.sort(dim=1, descending=True).values
        kth_B1 = sorted_BV.gather(1, (k_B - 1).unsqueeze(1))
        scaled_BV = scaled_BV.masked_fill(scaled_BV < kth_B1, -torch.inf)
        is_untied_B &= (scaled_BV >= kth_B1).sum(1) == k_B
    p_BV = scaled_BV.softmax(1)
    may_BV = p_BV > 0
    if top_p_B is not None:
        limit_B1 = top_p_B.to(torch.float64).unsqueeze(1)
        sorted_BV, order_BV = p_BV.sort(dim=1, descending=True, stable=True)
        before_BV = sorted_BV.cumsum(1) - sorted_BV
        uncut = limit_B1 >= 1
        keep_BV = torch.zeros_like(may_BV).scatter_(1, order_BV, (before_BV < limit_B1) | uncut)
        near_BV = torch.zeros_like(may_BV).scatter_(1, order_BV, (before_BV < limit_B1 + TOP_P_SLACK) | uncut)
        smallest_kept_B1 = p_BV.masked_fill(~keep_BV, torch.inf).amin(1, keepdim=True)
        tied_BV = p_BV == smallest_kept_B1
        is_untied_B &= ~(tied_BV & ~keep_BV).any(1)
        may_BV &= near_BV | tied_BV
        p_BV = p_BV.masked_fill(~keep_BV, 0)
        p_BV = p_BV / p_BV.sum(1, keepdim=True)
    return Allowed(p_BV, may_BV, is_untied_B)


def uniformity(u: Tensor) -> float:
    """The chance that draws from a uniform distribution on (0, 1) look less even than `u` (chi-square, BINS
    bins)."""
    counts = torch.histc(u.to(torch.float64), bins=BINS, min=0, max=1)
    expected = len(u) / BINS
    statistic = ((counts - expected) ** 2 / expected).sum()
    half = torch.tensor((BINS - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic / 2))


def _steps(parts: list[Tensor]) -> Tensor:
    """Of each row from call to call; the rows of all calls are the same."""
    return torch.cat([(after - before) % 1 for before, after in pairwise(parts)])


def _improbable(what: str, chance: float) -> Comparison:
    return Comparison.of(Verdict.wrong("value", f"{what} (chi-square, chance {chance:.1e})"))


def _greedy(ids_G: Tensor, logits_GV: Tensor) -> Verdict | None:
    if not len(ids_G):
        return None
    chosen_G = logits_GV.gather(1, ids_G.unsqueeze(1)).squeeze(1)
    wrong = int((chosen_G != logits_GV.amax(1)).sum())
    return (
        Verdict.wrong("value", f"{wrong} of {len(ids_G)} greedy ids are not the largest logit")
        if wrong
        else None
    )


def _pick(values_B: Tensor | None, mask_B: Tensor) -> Tensor | None:
    return None if values_B is None else values_B[mask_B]
