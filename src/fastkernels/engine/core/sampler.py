"""From hidden states to ids: head, sampler task and, where asked for, other logits and log-probabilities.

S sampled rows · V vocabulary · K best tokens · T tokens of a step · P prompt tokens that are scored
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastkernels.engine.core.plan import Plan
from fastkernels.engine.core.rows import SamplingInputs
from fastkernels.engine.core.shaping import RowShapes, shape_
from fastkernels.engine.core.split_vocabulary import SplitVocabulary

# Prompt tokens whose logits are there at a time: 64 of a vocabulary of 128k take 33 MB.
SCORED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Variant:
    """What the rows of a step need beyond the plain choice; each variant has its own graph."""

    is_filtered: bool = False  # some row uses top-k or top-p
    num_logprobs: int | None = None  # at least as many log-probabilities as a row asked for; None: none did
    is_shaped: bool = False  # some row uses a penalty, min_p, or is below its min_tokens


class Ranking(NamedTuple):
    """On the device what `plan.Ranked` is on the host; of the untempered distribution."""

    logprobs_S: Tensor
    ranks_S: Tensor
    best_ids_SK: Tensor
    best_logprobs_SK: Tensor


@dataclass(frozen=True, slots=True)
class Choice:
    """What a step gives, on the device: sampled ids; where asked for their ranking, and that of the scored
    prompt tokens."""

    ids_S: Tensor  # int64
    ranking: Ranking | None = None
    scores: Ranking | None = None

    def first(self, count: int) -> Choice:
        """Of the first `count` rows."""
        ranking = None if self.ranking is None else Ranking(*(part[:count] for part in self.ranking))
        return Choice(self.ids_S[:count], ranking)


class RowVariants:
    """Which variant the rows of a plan need: host arrays over rows, filled at admission."""

    def __init__(self, num_rows: int) -> None:
        self._filtered_R = np.zeros(num_rows, bool)
        self._logprobs_R = np.full(num_rows, -1, np.int64)
        self.shapes = RowShapes(num_rows)

    def of(self, plan: Plan) -> Variant:
        for admission in plan.admitted:
            params = admission.request.sampling
            self._filtered_R[admission.row] = params.is_filtered
            self._logprobs_R[admission.row] = -1 if params.logprobs is None else params.logprobs
            self.shapes.enter(admission.row, admission.request)
        rows = plan.rows_B[plan.samples_B]
        most = int(self._logprobs_R[rows].max(initial=-1))
        return Variant(
            bool(self._filtered_R[rows].any()),
            _rounded(most) if most >= 0 else None,
            self.shapes.are_needed(plan),
        )


def _rounded(count: int) -> int:
    """The next power of two: every number of log-probabilities would have graphs of its own."""
    return 1 << (count - 1).bit_length() if count > 1 else count


def choose(
    model: nn.Module,
    hidden_SD: Tensor,
    sampling: SamplingInputs,
    variant: Variant,
    split: SplitVocabulary | None = None,
) -> Choice:
    """Sample the next id of each row with the model's own head, sampler and softmax. split: where the head
    gives a rank's logits alone."""
    logits_SV = model.compute_logits(hidden_SD)  # pyright: ignore[reportCallIssue]
    if split is not None:
        if variant == Variant() and (ids_S := split.best(logits_SV, sampling)) is not None:
            return Choice(ids_S)
        logits_SV = split.whole(logits_SV)
    logprobs_SV = None
    if variant.num_logprobs is not None:
        logprobs_SV = model.softmax(logits_SV).log()  # pyright: ignore[reportCallIssue]
    if sampling.shape is not None:
        shape_(
            logits_SV,
            sampling.temperature_S,
            sampling.positions_S,
            sampling.rows_S,
            sampling.tokens_RL,
            sampling.shape,
        )
    top_k_S, top_p_S = (sampling.top_k_S, sampling.top_p_S) if variant.is_filtered else (None, None)
    ids_S = model.sampler(  # pyright: ignore[reportCallIssue]
        logits_SV, sampling.temperature_S, top_k_S, top_p_S, sampling.seeds_S, sampling.positions_S
    )
    if logprobs_SV is None or variant.num_logprobs is None:
        return Choice(ids_S)
    return Choice(ids_S, _ranking(logprobs_SV, ids_S, variant.num_logprobs))


def score(
    model: nn.Module,
    hidden_TD: Tensor,
    places_P: Tensor,
    ids_P: Tensor,
    count: int,
    split: SplitVocabulary | None = None,
) -> Ranking:
    """How probable each id is behind the token at its place, with the `count` best ones there."""
    parts = []
    for places, ids in zip(places_P.split(SCORED_AT_ONCE), ids_P.split(SCORED_AT_ONCE)):
        logits = model.compute_logits(hidden_TD[places])  # pyright: ignore[reportCallIssue]
        logits = logits if split is None else split.whole(logits)
        parts.append(_ranking(model.softmax(logits).log(), ids, count))  # pyright: ignore[reportCallIssue]
    return Ranking(*(torch.cat(column) for column in zip(*parts)))


def _ranking(logprobs_SV: Tensor, ids_S: Tensor, count: int) -> Ranking:
    best_logprobs_SK, best_ids_SK = logprobs_SV.topk(min(count, logprobs_SV.shape[1]), dim=-1)
    own_S1 = logprobs_SV.gather(1, ids_S[:, None])
    return Ranking(own_S1[:, 0], (logprobs_SV >= own_S1).sum(1), best_ids_SK, best_logprobs_SK)
