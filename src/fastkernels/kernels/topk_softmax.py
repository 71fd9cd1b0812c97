"""Routing of tokens to experts: the k likeliest of a softmax, with their probabilities.

    p = softmax(logit_scale logits[t])
    ids[t] = the k largest of logits[t], falling; equal logits: the lower id first
    weights[t] = p[ids[t]],  divided by their sum with `renormalize`,  times expert_scale[ids[t]] if any

T tokens · E experts · k experts of a token; logit_scale > 0. Probabilities in float32 (float64 stays
float64), over all E experts. The choice is by logit, which probabilities follow: float32 cannot tell
exp(-100) from exp(-110), so a choice by probability would take the wrong one of two improbable experts. NaN
counts as -inf in the choice, so ids are valid whatever the logits are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.providers import PROVIDERS


def _fake(logits_TE: Tensor, top_k: int, *_: object) -> tuple[Tensor, Tensor]:
    shape = (logits_TE.shape[0], top_k)
    dtype = torch.promote_types(logits_TE.dtype, torch.float32)
    return logits_TE.new_empty(shape, dtype=dtype), logits_TE.new_empty(shape, dtype=torch.int32)


def _reference(
    logits_TE: Tensor,
    top_k: int,
    renormalize: bool,
    logit_scale: float = 1.0,
    expert_scale_E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    scores_TE = logits_TE.masked_fill(logits_TE.isnan(), -torch.inf)
    ids_TK = scores_TE.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    wide_TE = logits_TE.to(torch.promote_types(logits_TE.dtype, torch.float32))
    weights_TK = (wide_TE * logit_scale).softmax(-1).gather(-1, ids_TK)
    if renormalize:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return _scaled(weights_TK, ids_TK, expert_scale_E), ids_TK.to(torch.int32)


def _scaled(weights_TK: Tensor, ids_TK: Tensor, expert_scale_E: Tensor | None) -> Tensor:
    return weights_TK if expert_scale_E is None else weights_TK * expert_scale_E[ids_TK].to(weights_TK)


def _torch(
    logits_TE: Tensor,
    top_k: int,
    renormalize: bool,
    logit_scale: float = 1.0,
    expert_scale_E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One stable sort, whose values are the logits that the weights need.

    Renormalised weights are the softmax of the chosen logits alone: the sum over all experts cancels.
    """
    scores_TE = logits_TE.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    found = scores_TE.sort(dim=-1, descending=True, stable=True)
    ids_TK = found.indices[:, :top_k]
    wide = torch.promote_types(logits_TE.dtype, torch.float32)
    if logit_scale != 1.0:
        logits_TE = logits_TE.to(wide) * logit_scale
    if renormalize:
        weights_TK = logits_TE.gather(-1, ids_TK).softmax(-1, dtype=wide)
    else:
        weights_TK = logits_TE.softmax(-1, dtype=wide).gather(-1, ids_TK)
    return _scaled(weights_TK, ids_TK, expert_scale_E), ids_TK.to(torch.int32)


_topk_softmax = Kernel(
    "topk_softmax",
    "(Tensor logits, int top_k, bool renormalize, float logit_scale=1.0, Tensor? expert_scale=None) "
    "-> (Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
        Implementation("sgl_kernel", f"{PROVIDERS}.sgl_kernel", requires=("sgl_kernel",), extra="sgl-kernel"),
    ),
    rows=lambda logits_TE, *_: logits_TE.shape[0],
)


def topk_softmax(
    logits_TE: Tensor,
    top_k: int,
    renormalize: bool,
    logit_scale: float = 1.0,
    expert_scale_E: Tensor | None = None,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(weights [T, k] float32, ids [T, k] int32), contiguous; a row's ids are distinct, logits falling.

    Raises KernelError when `impl` cannot serve the call, ValueError unless 1 <= top_k <= E.
    """
    if not 1 <= top_k <= logits_TE.shape[1]:
        raise ValueError(f"top_k must lie between 1 and the {logits_TE.shape[1]} experts, not {top_k}")
    return _topk_softmax(logits_TE, top_k, renormalize, logit_scale, expert_scale_E, impl=impl)
