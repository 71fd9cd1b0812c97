"""top_k and top_p as a threshold: allowed are the ids at or before the last allowed one in sorted order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Threshold(NamedTuple):
    """The last allowed entry. v is allowed if logits[v] > logit, or logits[v] == logit and v <= id."""

    logit_B: Tensor
    id_B: Tensor  # int64


def threshold(
    logits_BV: Tensor, temperature_B: Tensor, top_k_B: Tensor | None, top_p_B: Tensor | None
) -> Threshold:
    """One stable sort by falling logit, so that ties keep the order of their ids; no synchronisation."""
    sorted_BV, ids_BV = logits_BV.sort(dim=1, descending=True, stable=True)
    vocabulary = logits_BV.shape[1]
    allowed_B = torch.full_like(ids_BV[:, 0], vocabulary)
    if top_k_B is not None:
        allowed_B = torch.where(top_k_B > 0, top_k_B, vocabulary).clamp(max=vocabulary).long()
    if top_p_B is not None:
        # A row at temperature 0 takes its first id whatever is allowed; 1 keeps its arithmetic finite.
        divisor_B = torch.where(temperature_B > 0, temperature_B, 1.0)
        kept_BV = torch.arange(vocabulary, device=logits_BV.device) < allowed_B[:, None]
        shifted_BV = (sorted_BV - sorted_BV[:, :1]) / divisor_B[:, None]
        share_BV = shifted_BV.masked_fill(~kept_BV, -torch.inf).softmax(1)
        # An id is allowed while those before it have not reached top_p.
        before_BV = share_BV.cumsum(1) - share_BV
        reached_B = (before_BV < top_p_B[:, None]).sum(1).clamp(min=1)
        allowed_B = torch.where(top_p_B < 1, reached_B.minimum(allowed_B), allowed_B)
    last_B1 = (allowed_B - 1)[:, None]
    return Threshold(sorted_BV.gather(1, last_B1).squeeze(1), ids_BV.gather(1, last_B1).squeeze(1))
