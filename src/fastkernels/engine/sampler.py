"""From hidden states to ids: head, sampler task and, where asked for, other logits and log-probabilities.

S sampled rows · V vocabulary · K best tokens
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from fastkernels.engine.plan import Plan
from fastkernels.engine.rows import SamplingInputs
from fastkernels.engine.shaping import RowShapes, shape_


@dataclass(frozen=True, slots=True)
class Variant:
    """What the rows of a step need beyond the plain choice; each variant has its own graph."""

    is_filtered: bool = False  # some row uses top-k or top-p
    num_logprobs: int | None = None  # at least as many log-probabilities as a row asked for; None: none did
    is_shaped: bool = False  # some row uses a penalty, min_p, or is below its min_tokens


@dataclass(frozen=True, slots=True)
class Choice:
    """Sampled ids on the device, and log-probabilities of the untempered distribution."""

    ids_S: Tensor  # int64
    top_ids_SK: Tensor | None = None
    top_logprobs_SK: Tensor | None = None
    logprobs_S: Tensor | None = None  # of the sampled ids

    def first(self, count: int) -> Choice:
        """Of the first `count` rows."""
        return Choice(
            self.ids_S[:count],
            None if self.top_ids_SK is None else self.top_ids_SK[:count],
            None if self.top_logprobs_SK is None else self.top_logprobs_SK[:count],
            None if self.logprobs_S is None else self.logprobs_S[:count],
        )

    @property
    def tensors(self) -> list[Tensor]:
        return [
            t for t in (self.ids_S, self.top_ids_SK, self.top_logprobs_SK, self.logprobs_S) if t is not None
        ]


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


def choose(model: nn.Module, hidden_SD: Tensor, sampling: SamplingInputs, variant: Variant) -> Choice:
    """Sample the next id of each row with the model's own head, sampler and softmax."""
    logits_SV = model.compute_logits(hidden_SD)  # pyright: ignore[reportCallIssue]
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
    top_logprobs_SK, top_ids_SK = logprobs_SV.topk(min(variant.num_logprobs, logprobs_SV.shape[1]), dim=-1)
    return Choice(ids_S, top_ids_SK, top_logprobs_SK, logprobs_SV.gather(1, ids_S[:, None])[:, 0])
