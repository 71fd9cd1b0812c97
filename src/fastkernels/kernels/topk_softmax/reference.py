"""topk_softmax in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def topk_softmax(logits_TE: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    scores_TE = logits_TE.masked_fill(logits_TE.isnan(), -torch.inf)
    ids_TK = scores_TE.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    wide_TE = logits_TE.to(torch.promote_types(logits_TE.dtype, torch.float32))
    weights_TK = wide_TE.softmax(-1).gather(-1, ids_TK)
    if renormalize:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return weights_TK, ids_TK.to(torch.int32)
