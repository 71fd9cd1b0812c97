"""A narrow perceptron whose layers stay on the chip between a row's input and its output.

    h_0 = x,  h_{i+1} = relu(h_i W_i^T),  y = h_L W_L^T

M rows · weights W_i [out, in], no biases, no activation at the end. Products accumulate in at least float32;
y has the dtype of x, to which layers may be rounded between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(x_MK: Tensor, weights: Sequence[Tensor]) -> Tensor:
    for weight in weights[:-1]:
        x_MK = (x_MK @ weight.T).clamp_min(0)
    return x_MK @ weights[-1].T


def _by_layers(x_MK: Tensor, weights: Sequence[Tensor]) -> Tensor:
    for weight in weights[:-1]:
        x_MK = torch.nn.functional.linear(x_MK, weight).relu_()
    return torch.nn.functional.linear(x_MK, weights[-1])


def _work(tally: Any, x_MK: Tensor, weights: Sequence[Tensor]) -> None:
    tally.multiply(x_MK, sum(2 * len(x_MK) * weight.numel() for weight in weights))


_fused_mlp = Kernel(
    "fused_mlp",
    "(Tensor x, Tensor[] weights) -> Tensor",
    _reference,
    fake=lambda x_MK, weights: x_MK.new_empty(len(x_MK), len(weights[-1])),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _by_layers, devices=("cpu", "cuda")),
    ),
    rows=lambda x_MK, weights: len(x_MK),
    work=_work,
)


def fused_mlp(x_MK: Tensor, weights: Sequence[Tensor], *, impl: str | None = None) -> Tensor:
    """[M, N] of x [M, K] and at least two weights, [H, K], [H, H] .., [N, H].

    Raises ValueError where these do not fit each other, KernelError when `impl` cannot serve the call.
    """
    widths = [x_MK.shape[1], *(len(weight) for weight in weights)]
    if len(weights) < 2 or [weight.shape[1] for weight in weights] != widths[:-1]:
        shapes = ", ".join(str(list(weight.shape)) for weight in weights)
        raise ValueError(
            f"fused_mlp: rows of {x_MK.shape[1]} for weights {shapes}, which must fit each other"
        )
    return _fused_mlp(x_MK, list(weights), impl=impl)
