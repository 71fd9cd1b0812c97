"""A router of few tokens: the product that gives the logits of experts, and the choice among them.

    r = x W^T + b, rounded to the dtype of x
    weights, ids = topk_softmax(r)                        the k largest, with their probabilities

T tokens · D hidden · E experts · k experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.linear import linear
from fastkernels.kernels.topk_softmax import topk_softmax

Routed = tuple[Tensor, Tensor]


def _in_parts(impl: str | None) -> Callable[..., Routed]:
    """Both parts by implementation `impl`; by the one that is chosen for each of them."""

    def linear_topk(
        x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None, top_k: int, renormalize: bool
    ) -> Routed:
        return topk_softmax(linear(x_TD, weight_ED, bias_E, impl=impl), top_k, renormalize, impl=impl)

    return linear_topk


def _fake(x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None, top_k: int, renormalize: bool) -> Routed:
    shape, wide = (x_TD.shape[0], top_k), torch.promote_types(x_TD.dtype, torch.float32)
    return x_TD.new_empty(shape, dtype=wide), x_TD.new_empty(shape, dtype=torch.int32)


_linear_topk = Kernel(
    "linear_topk",
    "(Tensor x, Tensor weight, Tensor? bias, int top_k, bool renormalize) -> (Tensor, Tensor)",
    _in_parts("reference"),
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _in_parts(None), devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.shape[0],
    work=lambda tally, x_TD, weight_ED, *_: tally.multiply(x_TD, 2 * x_TD.shape[0] * weight_ED.numel()),
)


def linear_topk(
    x_TD: Tensor,
    weight_ED: Tensor,
    bias_E: Tensor | None,
    top_k: int,
    renormalize: bool,
    *,
    impl: str | None = None,
) -> Routed:
    """(weights [T, k] float32, ids [T, k] int32), as of topk_softmax; x, weight and bias of one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError unless 1 <= top_k <= E.
    """
    if not 1 <= top_k <= weight_ED.shape[0]:
        raise ValueError(f"top_k must lie between 1 and the {weight_ED.shape[0]} experts, not {top_k}")
    return _linear_topk(x_TD, weight_ED, bias_E, top_k, renormalize, impl=impl)
