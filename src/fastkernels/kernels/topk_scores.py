"""Routing of tokens to experts by scores of their own: the k best, weighted by other scores.

    ids[t] = the k largest of choice[t], falling; equal ones: the lower id first
    weights[t] = scale scores[t][ids[t]],  divided by their sum (plus 1e-20) with `renormalize`

T tokens · E experts · k experts of a token. `choice` is the scores, or the scores with a bias that moves the
choice and no weight. Weights in float32 (float64 stays float64). NaN counts as -inf in the choice, so ids are
valid whatever it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel

LEAST = 1e-20  # added to the sum of the chosen


def _reference(
    scores_TE: Tensor, choice_TE: Tensor, top_k: int, renormalize: bool, scale: float
) -> tuple[Tensor, Tensor]:
    choice_TE = choice_TE.masked_fill(choice_TE.isnan(), -torch.inf)
    ids_TK = choice_TE.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights_TK = scores_TE.to(torch.promote_types(scores_TE.dtype, torch.float32)).gather(-1, ids_TK)
    if renormalize:
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + LEAST)
    return weights_TK * scale, ids_TK.to(torch.int32)


def _fake(scores_TE: Tensor, choice_TE: Tensor, top_k: int, *_: object) -> tuple[Tensor, Tensor]:
    shape = (scores_TE.shape[0], top_k)
    dtype = torch.promote_types(scores_TE.dtype, torch.float32)
    return scores_TE.new_empty(shape, dtype=dtype), scores_TE.new_empty(shape, dtype=torch.int32)


_topk_scores = Kernel(
    "topk_scores",
    "(Tensor scores, Tensor choice, int top_k, bool renormalize, float scale) -> (Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _reference, devices=("cpu", "cuda")),
    ),
    rows=lambda scores_TE, *_: scores_TE.shape[0],
)


def topk_scores(
    scores_TE: Tensor,
    choice_TE: Tensor,
    top_k: int,
    renormalize: bool,
    scale: float,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(weights [T, k] float32, ids [T, k] int32), contiguous; a row's ids are distinct.

    Raises KernelError when `impl` cannot serve the call, ValueError unless 1 <= top_k <= E.
    """
    if not 1 <= top_k <= scores_TE.shape[1]:
        raise ValueError(f"top_k must lie between 1 and the {scores_TE.shape[1]} experts, not {top_k}")
    return _topk_scores(scores_TE, choice_TE, top_k, renormalize, scale, impl=impl)
