"""Routing of tokens to experts: the k likeliest of a softmax, with their probabilities.

    p = softmax(logits[t])
    ids[t] = the k largest of logits[t], falling; equal logits: the lower id first
    weights[t] = p[ids[t]],  divided by their sum with `renormalize`

T tokens · E experts · k experts of a token. Probabilities in float32 (float64 stays float64), over all E
experts. The choice is by logit, which probabilities follow: float32 cannot tell exp(-100) from exp(-110), so
a choice by probability would take the wrong one of two improbable experts. NaN counts as -inf in the choice,
so ids are valid whatever the logits are.
"""

from __future__ import annotations

# Names of torch, not torch itself: importing the implementation `.torch` binds that name here.
from torch import Tensor, float32, int32, promote_types

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.topk_softmax import reference


def _fake(logits_TE: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    shape = (logits_TE.shape[0], top_k)
    dtype = promote_types(logits_TE.dtype, float32)
    return logits_TE.new_empty(shape, dtype=dtype), logits_TE.new_empty(shape, dtype=int32)


_topk_softmax = Kernel(
    "topk_softmax",
    "(Tensor logits, int top_k, bool renormalize) -> (Tensor, Tensor)",
    reference.topk_softmax,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda logits_TE, *_: logits_TE.shape[0],
)


def topk_softmax(
    logits_TE: Tensor, top_k: int, renormalize: bool, *, impl: str | None = None
) -> tuple[Tensor, Tensor]:
    """(weights [T, k] float32, ids [T, k] int32), contiguous; a row's ids are distinct, weights falling.

    Raises KernelError when `impl` cannot serve the call, ValueError unless 1 <= top_k <= E.
    """
    if not 1 <= top_k <= logits_TE.shape[1]:
        raise ValueError(f"top_k must lie between 1 and the {logits_TE.shape[1]} experts, not {top_k}")
    return _topk_softmax(logits_TE, top_k, renormalize, impl=impl)
