"""A gate for every channel of a feature map, from the means of all of them: squeeze and excitation.

    gate[b] = sigmoid(W2 silu(W1 mean[b] + b1) + b2)

B images · C channels · R of the reduced layer. W1 [R, C], W2 [C, R]. Accumulates in at least float32, rounds
to the dtype of the mean after each layer; the reference at the end alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.activation import ACTIVATIONS
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.linear_activation import linear_activation


def _reference(
    mean_BC: Tensor, reduce_RC: Tensor, bias_R: Tensor, expand_CR: Tensor, bias_C: Tensor
) -> Tensor:
    dtype = torch.promote_types(mean_BC.dtype, torch.float32)
    reduced_BR = ACTIVATIONS["silu"](F.linear(mean_BC.to(dtype), reduce_RC.to(dtype), bias_R.to(dtype)))
    gate_BC = ACTIVATIONS["sigmoid"](F.linear(reduced_BR, expand_CR.to(dtype), bias_C.to(dtype)))
    return gate_BC.to(mean_BC.dtype)


def _parts(mean_BC: Tensor, reduce_RC: Tensor, bias_R: Tensor, expand_CR: Tensor, bias_C: Tensor) -> Tensor:
    """A kernel for each layer, as is chosen for this device."""
    return linear_activation(
        linear_activation(mean_BC, reduce_RC, bias_R, "silu"), expand_CR, bias_C, "sigmoid"
    )


_squeeze_excite = Kernel(
    "squeeze_excite",
    "(Tensor mean, Tensor reduce, Tensor reduce_bias, Tensor expand, Tensor expand_bias) -> Tensor",
    _reference,
    fake=lambda mean_BC, *_: torch.empty_like(mean_BC),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _parts, devices=("cpu", "cuda")),
    ),
    rows=lambda mean_BC, *_: mean_BC.shape[0],
    work=lambda tally, mean, reduce, bias, expand, *_: tally.multiply(
        mean, 2 * mean.shape[0] * (reduce.numel() + expand.numel())
    ),
)


def squeeze_excite(
    mean_BC: Tensor,
    reduce_RC: Tensor,
    bias_R: Tensor,
    expand_CR: Tensor,
    bias_C: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """Means [B, C] to gates [B, C] within 0 .. 1, in the same dtype, contiguous.

    All tensors have one dtype. Raises KernelError when `impl` cannot serve the call, ValueError where the
    layers do not fit.
    """
    channels, reduced = mean_BC.shape[-1], reduce_RC.shape[0]
    if tuple(reduce_RC.shape) != (reduced, channels) or tuple(expand_CR.shape) != (channels, reduced):
        raise ValueError(
            f"layers {list(reduce_RC.shape)} and {list(expand_CR.shape)} do not fit {channels} channels"
        )
    return _squeeze_excite(mean_BC, reduce_RC, bias_R, expand_CR, bias_C, impl=impl)
