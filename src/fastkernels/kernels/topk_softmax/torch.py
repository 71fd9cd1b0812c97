"""topk_softmax by one stable sort, whose values are the logits that the weights need.

Renormalised weights are the softmax of the chosen logits alone: the sum over all experts cancels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def topk_softmax(logits_TE: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    scores_TE = logits_TE.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    found = scores_TE.sort(dim=-1, descending=True, stable=True)
    ids_TK = found.indices[:, :top_k]
    wide = torch.promote_types(logits_TE.dtype, torch.float32)
    if renormalize:
        weights_TK = logits_TE.gather(-1, ids_TK).softmax(-1, dtype=wide)
    else:
        weights_TK = logits_TE.softmax(-1, dtype=wide).gather(-1, ids_TK)
    return weights_TK, ids_TK.to(torch.int32)
